"""Who is up, who is down, and that neither flaps."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from fake_client import FakeClient
from fake_publisher import CLEARED, FakePublisher, stored

from expediter.cluster.membership import Member, Membership, WorkerStatus
from expediter.config import WorkerEndpoint
from expediter.errors import ConfigError, WorkerRefused, WorkerSilent
from expediter.load import WorkerId
from expediter.routing.feedback import Feedback, WorkerAdded, WorkerRemoved
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt
from expediter.routing.sticky import Sticky


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def watching(
    client: FakeClient, *, interval_seconds: float = 0.01
) -> AsyncIterator[tuple[Membership, Member, PrefixIndex]]:
    index = PrefixIndex(clock=lambda: 0.0, block_size=2, assumed_capacity=10)
    membership = Membership(
        connect=lambda _: client, index=index, interval_seconds=interval_seconds
    )
    member = membership.add(WorkerEndpoint(url="http://127.0.0.1:1", worker_id="w"))
    task = asyncio.create_task(membership.run())
    try:
        yield membership, member, index
    finally:
        task.cancel()
        await asyncio.wait([task])


def failing(error: Exception) -> Callable[[], int]:
    def health() -> int:
        raise error

    return health


async def probes(client: FakeClient, count: int) -> None:
    seen = client.num_probes
    await until(lambda: client.num_probes > seen + count)


async def test_a_worker_is_up_at_its_first_good_answer_and_says_what_it_serves() -> None:
    models = b'{"data": [{"id": "base"}, {"id": "poet", "parent": "base", "x": 1}]}'
    client = FakeClient(health=failing(WorkerRefused("not yet")))
    client.pages["/v1/models"] = (200, models)
    async with watching(client) as (membership, member, _):
        await probes(client, 3)
        assert member.status is WorkerStatus.STARTING
        client.health = lambda: 200
        await until(lambda: member.status is WorkerStatus.UP)
        assert list(member.models) == ["base", "poet"]
        assert membership.is_adapter("poet")
        assert not membership.is_adapter("base")


async def test_one_slow_answer_is_not_the_end_but_three_in_a_row_are() -> None:
    client = FakeClient()
    async with watching(client) as (_, member, _index):
        await until(lambda: member.status is WorkerStatus.UP)
        answers = iter([503, 503, 200] * 5)
        client.health = lambda: next(answers, 200)
        await probes(client, 16)
        assert member.status is WorkerStatus.UP
        client.health = failing(WorkerSilent("..."))
        await until(lambda: member.status is WorkerStatus.DOWN)


async def test_a_worker_that_refuses_is_down_at_once_and_back_after_two_good_answers() -> None:
    client = FakeClient()
    async with watching(client) as (_, member, index):
        await until(lambda: member.status is WorkerStatus.UP)
        index.assume(WorkerId("w"), token_prompt([1, 2, 3]), seconds=99)
        client.health = failing(WorkerRefused("gone"))
        await until(lambda: member.status is WorkerStatus.DOWN)
        assert index.match(token_prompt([1, 2, 3])) == {}
        answers = iter([200, 503] * 5)
        client.health = lambda: next(answers, 503)
        await probes(client, 10)
        assert member.status is WorkerStatus.DOWN
        client.health = lambda: 200
        await until(lambda: member.status is WorkerStatus.UP)


def told_by(publisher: FakePublisher) -> bytes:
    """What vLLM answers on where its events are."""
    return (
        f'{{"0": {{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "",'
        f' "endpoint": "{publisher.endpoint}", "replay_endpoint": "{publisher.replay_endpoint}"}}}}'
    ).encode()


async def test_a_worker_that_comes_back_between_probes_is_found_at_its_new_port() -> None:
    first, second = FakePublisher(), FakePublisher()
    await first.publish(stored([1], None, [1, 1]))
    await second.publish(stored([1], None, [2, 2]))
    servers = [asyncio.create_task(each.serve_replays()) for each in (first, second)]
    client = FakeClient(pages={"/kv_event_sources": (200, told_by(first))})
    rings = Sticky(max_imbalance=0, slack_requests=1, block_size=2, num_blocks=1, num_points=1)
    heard: list[Feedback] = []
    rings.observe = heard.append  # type: ignore[method-assign]
    async with watching(client, interval_seconds=60.0) as (membership, member, index):
        await until(lambda: index.match(token_prompt([1, 1, 3])) == {"w": 2})
        membership.teach(rings)
        servers[0].cancel()
        await asyncio.wait(servers[:1])
        client.pages["/kv_event_sources"] = (500, b"")  # not ready to say yet
        first.close()
        await until(lambda: client.num_probes > 1)
        assert member.publishes_events
        client.pages["/kv_event_sources"] = (200, told_by(second))
        member.wake.set()  # an interval later
        await until(lambda: index.match(token_prompt([2, 2, 3])) == {"w": 2})
        assert index.match(token_prompt([1, 1, 3])) == {}
        assert member.status is WorkerStatus.UP
        assert [source.events for source in member.subscribers] == [second.endpoint]
        assert [type(e) for e in heard] == [WorkerAdded, WorkerRemoved, WorkerAdded]
    servers[1].cancel()
    await asyncio.wait(servers[1:])
    second.close()


async def test_a_workers_kv_events_are_found_by_asking_it() -> None:
    publisher = FakePublisher()
    await publisher.publish(stored([1], None, [1, 1]))
    server = asyncio.create_task(publisher.serve_replays())
    events = publisher.endpoint.replace("127.0.0.1", "*")
    source = (
        f'{{"0": {{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "{events}",'
        f' "replay_endpoint": "{publisher.replay_endpoint}", "hwm": 1, "topic": ""}}}}'
    )
    client = FakeClient(pages={"/kv_event_sources": (200, source.encode())})
    async with watching(client) as (membership, member, index):
        await until(lambda: index.match(token_prompt([1, 1, 2])) == {"w": 2})
        assert member.publishes_events
        rings = Sticky(max_imbalance=0, slack_requests=1, block_size=2, num_blocks=1, num_points=1)
        heard: list[Feedback] = []
        rings.observe = heard.append  # type: ignore[method-assign]
        membership.teach(rings)
        await publisher.publish(CLEARED)
        await until(lambda: [type(e) for e in heard] == [WorkerAdded, WorkerRemoved, WorkerAdded])
        await publisher.publish(stored([1], None, [1, 1]))
        client.health = failing(WorkerRefused("gone"))
        await until(lambda: member.status is WorkerStatus.DOWN)
        client.health = lambda: 200
        # It was only away: what it holds is learnt again.
        await until(lambda: index.match(token_prompt([1, 1, 2])) == {"w": 2})
    server.cancel()
    await asyncio.wait([server])
    publisher.close()


async def test_sglang_says_it_another_way() -> None:
    publisher = FakePublisher()
    server = asyncio.create_task(publisher.serve_replays())
    port, replay = publisher.ports
    info = (
        f'{{"kv_events": {{"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": {port},'
        f' "replay_endpoint_port_base": {replay}, "topic": "", "dp_size": 1}}, "x": []}}'
    )
    client = FakeClient(pages={"/server_info": (200, info.encode())})
    async with watching(client) as (_, _member, index):
        await until(lambda: publisher.num_replays > 0)
        await publisher.publish(stored([-5], None, [1, 1]))
        await until(lambda: index.match(token_prompt([1, 1, 2])) == {"w": 2})
    server.cancel()
    await asyncio.wait([server])
    publisher.close()


async def test_workers_come_and_go_at_run_time_but_not_twice() -> None:
    client = FakeClient()
    async with watching(client) as (membership, member, index):
        with pytest.raises(ConfigError, match="two workers"):
            membership.add(member.endpoint)
        other = membership.add(WorkerEndpoint(url="http://127.0.0.1:2"))
        await until(lambda: other.status is WorkerStatus.UP)
        assert other.worker_id == "127.0.0.1:2"
        await membership.remove(WorkerId("w"))
        assert membership.ready() == [other]
        index.assume(WorkerId("w"), token_prompt([1, 2, 3]), seconds=9)
        assert index.match(token_prompt([1, 2, 3])) == {}
