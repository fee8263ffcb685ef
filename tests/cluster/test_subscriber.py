"""The subscriber against real sockets: what a publisher says is what the index holds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import zmq
from fake_publisher import CLEARED, FakePublisher, removed, stored

from expediter.cluster.discovery import KVEventSource
from expediter.cluster.subscriber import KVEventSubscriber
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt

WORKER = WorkerId("w")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Following:
    """A publisher and a subscriber that follows it."""

    def __init__(self, publisher: FakePublisher, index: PrefixIndex) -> None:
        self.publisher = publisher
        self.index = index
        self.subscriber: KVEventSubscriber
        self.emptied: list[WorkerId] = []

    def matched(self, tokens: list[int]) -> int:
        return self.index.match(token_prompt(tokens)).get(WORKER, 0)


@asynccontextmanager
async def following(publisher: FakePublisher, *, replays: bool = True) -> AsyncIterator[Following]:
    index = PrefixIndex(clock=lambda: 0.0, block_size=2, assumed_capacity=10)
    index.add_worker(WORKER)
    scene = Following(publisher, index)
    replay = publisher.replay_endpoint if replays else None
    source = KVEventSource(events=publisher.endpoint, replay=replay)
    with zmq.Context() as context:
        subscriber = KVEventSubscriber(
            context,
            source=source,
            worker_id=WORKER,
            index=index,
            emptied=scene.emptied.append,
        )
        scene.subscriber = subscriber
        server = asyncio.create_task(publisher.serve_replays())
        subscriber.start()
        try:
            if replays:
                await until(lambda: publisher.num_replays > 0)
            yield scene
        finally:
            subscriber.close()
            server.cancel()
            await asyncio.wait([server])
            publisher.close()


async def test_what_was_published_before_is_learnt_by_replay() -> None:
    publisher = FakePublisher()
    await publisher.publish(stored([1, 2], None, [1, 1, 2, 2]))
    await publisher.publish(stored([3], 2, [3, 3]))
    async with following(publisher) as scene:
        await until(lambda: scene.matched([1, 1, 2, 2, 3, 3, 4]) == 6)
        await publisher.publish(removed(3))
        await until(lambda: scene.matched([1, 1, 2, 2, 3, 3, 4]) == 4)
        await publisher.publish(CLEARED)
        await until(lambda: scene.matched([1, 1, 2, 2, 3, 3, 4]) == 0)
        assert scene.subscriber.num_lost == 0
        assert scene.emptied == [WORKER]


async def test_lost_batches_are_asked_for_again_and_applied_in_order() -> None:
    async with following(FakePublisher()) as scene:
        publisher = scene.publisher
        await publisher.publish(stored([1], None, [1, 1]))
        await until(lambda: scene.matched([1, 1, 9]) == 2)
        await publisher.publish(stored([2], 1, [2, 2]), lose=True)
        await publisher.publish(removed(2), stored([4], 1, [4, 4]), lose=True)
        await publisher.publish(stored([3], 4, [3, 3]))
        await until(lambda: scene.matched([1, 1, 4, 4, 3, 3, 9]) == 6)
        assert scene.matched([1, 1, 2, 2, 9]) == 2
        assert (scene.subscriber.num_gaps, scene.subscriber.num_lost) == (1, 0)


async def test_batches_that_are_gone_for_good_clear_the_view() -> None:
    async with following(FakePublisher(buffer=1)) as scene:
        publisher = scene.publisher
        await publisher.publish(stored([1], None, [1, 1]))
        await until(lambda: scene.matched([1, 1, 9]) == 2)
        await publisher.publish(removed(1), lose=True)
        await publisher.publish(stored([2], None, [2, 2]))
        await until(lambda: scene.matched([2, 2, 9]) == 2)
        assert scene.matched([1, 1, 9]) == 0
        assert scene.subscriber.num_lost == 1


async def test_without_a_replay_endpoint_a_gap_clears_the_view() -> None:
    async with following(FakePublisher(), replays=False) as scene:
        publisher = scene.publisher
        for _ in range(50):  # until the subscription has arrived
            await publisher.publish(stored([1], None, [1, 1]))
            await asyncio.sleep(0.01)
        await until(lambda: scene.matched([1, 1, 9]) == 2)
        await publisher.publish(removed(1), lose=True)
        await publisher.publish(stored([2], None, [2, 2]))
        await until(lambda: scene.matched([2, 2, 9]) == 2)
        assert scene.matched([1, 1, 9]) == 0


async def test_a_restarted_publisher_has_an_empty_cache() -> None:
    async with following(FakePublisher()) as scene:
        first = scene.publisher
        await first.publish(stored([1], None, [1, 1]))
        await first.publish(stored([2], 1, [2, 2]))
        await until(lambda: scene.matched([1, 1, 2, 2, 9]) == 4)
        first.close()
        port, replay_port = first.ports
        second = FakePublisher(port=port, replay_port=replay_port)
        server = asyncio.create_task(second.serve_replays())
        # It need not say anything: its new connection does.
        await until(lambda: scene.matched([1, 1, 2, 2, 9]) == 0)
        await until(lambda: second.num_replays > 0)
        await second.publish(stored([1], None, [7, 7]))
        await until(lambda: scene.matched([7, 7, 9]) == 2)
        server.cancel()
        await asyncio.wait([server])
        second.close()


async def test_numbers_that_begin_again_mean_a_restart_unless_they_are_old_news() -> None:
    async with following(FakePublisher()) as scene:
        publisher = scene.publisher
        await publisher.publish(stored([1], None, [1, 1]))
        await publisher.publish(stored([2], 1, [2, 2]))
        await until(lambda: scene.matched([1, 1, 2, 2, 9]) == 4)
        publisher._seq = 0
        await publisher.publish(stored([5], None, [5, 5]))
        await until(lambda: scene.matched([5, 5, 9]) == 2)
        assert scene.matched([1, 1, 2, 2, 9]) == 0
        assert scene.emptied == [WORKER]


async def test_a_payload_that_cannot_be_read_clears_the_view_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with following(FakePublisher()) as scene:
        publisher = scene.publisher
        await publisher.publish(stored([1], None, [1, 1]))
        await until(lambda: scene.matched([1, 1, 9]) == 2)
        await publisher.publish_raw(b"\xc1 not MessagePack")
        await publisher.publish(stored([2], None, [2, 2]))
        await until(lambda: scene.matched([2, 2, 9]) == 2)
        assert scene.matched([1, 1, 9]) == 0
    assert "cannot be read" in caplog.text


async def test_a_thousand_batches_arrive_in_order() -> None:
    async with following(FakePublisher(buffer=2000)) as scene:
        parent, tokens = None, []
        for i in range(1000):
            block = [i, i + 1]
            await scene.publisher.publish(stored([i], parent, block), lose=i % 97 == 5)
            parent, tokens = i, tokens + block
        await until(lambda: scene.matched([*tokens, 9]) == 2000)
