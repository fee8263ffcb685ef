"""Workers that drain, fail, are busy with others' work, or have an adapter: who gets requests."""

import asyncio
from collections import Counter

import pytest
from fake_client import FakeClient
from test_dispatcher import Pupil, Scene
from test_membership import until, watching

from expediter.cluster.breaker import BreakerState
from expediter.cluster.client import Usage
from expediter.cluster.membership import Member, Membership, Model, WorkerStatus
from expediter.cluster.worker_metrics import ReportedLoad
from expediter.config import HealthConfig, WorkerEndpoint
from expediter.errors import WorkerDeclined, WorkerLost, WorkerSilent, WorkerUnavailable
from expediter.load import WorkerId
from expediter.routing.feedback import Feedback, WorkerAdded, WorkerRemoved
from expediter.routing.outstanding import OTHERS_TOKENS
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt

PAGE = (
    b'vllm:num_requests_running{engine="0"} 5\nvllm:num_requests_waiting{engine="0"} 2\n'
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
)


def member(scene: Scene, name: str) -> Member:
    return scene.membership.members[WorkerId(name)]


async def test_a_draining_worker_gets_nothing_new_and_can_be_taken_back() -> None:
    scene = Scene(FakeClient("a"), FakeClient("b"))
    scene.membership.drain(WorkerId("a"))
    assert member(scene, "a").status is WorkerStatus.DRAINING
    assert {await scene.dispatch(range(i, i + 9)) for i in range(0, 90, 10)} == {"b"}
    scene.membership.undrain(WorkerId("a"))
    assert await scene.dispatch(range(500, 509)) == "a"


async def test_a_removed_worker_finishes_what_it_has_before_it_goes() -> None:
    gate = asyncio.Event()
    scene = Scene(FakeClient("a", gate=gate))
    running = asyncio.create_task(scene.dispatch(range(9)))
    await asyncio.sleep(0)
    removal = asyncio.create_task(scene.membership.remove(WorkerId("a")))
    await asyncio.sleep(0.01)
    assert not removal.done()
    gate.set()
    await removal
    assert await running == "a"
    assert scene.membership.members == {}


async def test_a_removed_worker_goes_in_the_end_whatever_it_has() -> None:
    scene = Scene(FakeClient("a", gate=asyncio.Event()))
    running = asyncio.create_task(scene.dispatch(range(9)))
    await asyncio.sleep(0)
    await scene.membership.remove(WorkerId("a"), drain_seconds=0.01)
    assert scene.membership.members == {}
    running.cancel()
    await asyncio.wait([running])


async def test_a_worker_that_declines_is_no_answer_and_no_other_503_is_tried_again() -> None:
    scene = Scene(FakeClient("a", refusal=WorkerDeclined("full")), FakeClient("b", status=503))
    assert await scene.dispatch(range(9)) == "b"
    assert [d.worker_id for d in scene.sink.placements] == ["a", "b"]


@pytest.mark.parametrize("error", [WorkerLost("reset"), WorkerSilent("..."), WorkerDeclined("no")])
async def test_a_worker_that_is_well_and_fails_requests_is_avoided(error) -> None:
    """Its health checks are fine, so only its breaker can tell."""
    broken = FakeClient("a", refusal=error)
    scene = Scene(broken, FakeClient("b"))
    for i in range(0, 300, 10):
        try:
            await scene.dispatch(range(i, i + 9))
        except WorkerSilent:
            continue
    assert broken.num_requests == HealthConfig().breaker_failures
    assert member(scene, "a").status is WorkerStatus.UP
    assert member(scene, "a").breaker.state is BreakerState.OPEN


@pytest.mark.parametrize("status", [400, 404, 429, 500, 501, 502, 503, 504])
async def test_only_errors_of_the_server_count_and_they_stay_the_clients_answer(
    status: int,
) -> None:
    is_avoided = status in (500, 502, 504)
    broken = FakeClient("a", status=status)
    scene = Scene(broken, FakeClient("b"))
    for i in range(0, 300, 10):
        await scene.dispatch(range(i, i + 9))
        assert len(scene.sink.placements) == 1
    assert (broken.num_requests == HealthConfig().breaker_failures) == is_avoided


async def test_workers_lost_in_the_middle_of_answers_count_too() -> None:
    broken = FakeClient("a", failure=WorkerLost("gone"))
    scene = Scene(broken)
    for _ in range(HealthConfig().breaker_failures):
        with pytest.raises(WorkerLost):
            await scene.dispatch(range(9))
    with pytest.raises(WorkerUnavailable):
        await scene.dispatch(range(9))


async def test_a_dying_fleet_gets_little_more_than_its_clients_send(caplog) -> None:
    """Both workers fail everything, their breakers never open, and the clock stands still.

    1000 requests earn 200 retries, and 100 were saved up.
    """
    caplog.set_level("ERROR")
    clients = [FakeClient(name, refusal=WorkerLost(name)) for name in "ab"]
    scene = Scene(*clients)
    num_refused = 0
    for i in range(1000):
        for name in "ab":
            member(scene, name).breaker._limit = 10**9
        try:
            await scene.dispatch(range(i, i + 9))
        except WorkerUnavailable:
            num_refused += 1
        except WorkerLost:
            pass
    log = scene.dispatcher.log
    assert log.num_retries == pytest.approx(300, abs=2)
    assert num_refused == log.num_retries_refused == 1000 - log.num_retries
    assert sum(client.num_requests for client in clients) == 1000 + log.num_retries


async def test_what_others_send_to_a_worker_counts_as_its_load() -> None:
    scene = Scene(FakeClient("a"), FakeClient("b"))
    member(scene, "a").num_others = 20
    assert 20 * OTHERS_TOKENS > 100
    assert {await scene.dispatch(range(i, i + 9)) for i in range(0, 90, 10)} == {"b"}


async def test_a_workers_load_is_asked_for_and_forgotten_when_it_is_old() -> None:
    now = 0.0
    client = FakeClient(pages={"/metrics": (200, PAGE)})
    index = PrefixIndex(clock=lambda: 0.0, block_size=2, assumed_capacity=10)
    membership = Membership(
        connect=lambda _: client,
        index=index,
        interval_seconds=0.01,
        config=HealthConfig(load_interval_seconds=0.01, load_stale_seconds=5),
        clock=lambda: now,
    )
    told: list[Feedback] = []
    pupil = Pupil()
    pupil.observe = told.append  # type: ignore[method-assign]
    membership.teach(pupil)
    membership.count_known_by(lambda _: 3)
    one = membership.add(WorkerEndpoint(url="http://h:1", worker_id="w"))
    task = asyncio.create_task(membership.run())
    await until(lambda: one.load is not None)
    assert one.num_others == 7 - 3
    await until(lambda: WorkerAdded(worker_id=WorkerId("w"), capacity_tokens=1600) in told)
    client.pages["/metrics"] = (500, b"")
    await asyncio.sleep(0.05)
    assert one.num_others == 4
    now = 6.0
    await until(lambda: one.load is None)
    assert one.num_others == 0
    task.cancel()
    await asyncio.wait([task])
    assert told[-1] == WorkerRemoved(worker_id=WorkerId("w"))


async def test_a_policy_hears_of_workers_that_come_lose_their_cache_and_go() -> None:
    client = FakeClient()
    async with watching(client) as (membership, one, _):
        await until(lambda: one.status is WorkerStatus.UP)
        told: list[Feedback] = []
        pupil = Pupil()
        pupil.observe = told.append  # type: ignore[method-assign]
        membership.teach(pupil)
        client.health = lambda: 503
        await until(lambda: one.status is WorkerStatus.DOWN)
        client.health = lambda: 200
        await until(lambda: one.status is WorkerStatus.UP)
        await membership.remove(WorkerId("w"))
    name = WorkerId("w")
    came, went = WorkerAdded(worker_id=name), WorkerRemoved(worker_id=name)
    assert told == [came, went, came, went]


async def test_a_worker_that_has_lost_its_cache_without_a_word_is_learnt_anew() -> None:
    scene = Scene(FakeClient("a"))
    prompt = range(64)
    scene.used = Usage(prompt_tokens=64, cached_tokens=0)
    num_answers = HealthConfig().relearn_answers
    for _ in range(num_answers):
        await scene.dispatch(prompt)
    assert scene.index.match(token_prompt(prompt))
    await scene.dispatch(prompt)  # the first one predicted nothing
    assert scene.index.match(token_prompt(prompt)) == {}
    assert scene.dispatcher.predictions.num_relearnt == {"a": 1}
    tally = scene.dispatcher.log.workers[WorkerId("a")]
    assert tally.predicted_cached_tokens == num_answers * 60


def give_adapter(scene: Scene, *names: str, loaded: str) -> None:
    for name in names:
        one = member(scene, name)
        one.models = {"poet": Model(id="poet", parent="base"), "base": Model(id="base")}
        adapters = frozenset({"poet"} if name in loaded else ())
        one.load = ReportedLoad(num_running=0, num_waiting=0, adapters=adapters)


async def test_an_adapters_requests_go_where_it_is_loaded_until_that_is_too_busy() -> None:
    scene = Scene(FakeClient("a"), FakeClient("b"), FakeClient("c"))
    give_adapter(scene, "a", "b", loaded="b")
    placed = [await scene.dispatch(range(i, i + 9), model="poet") for i in range(0, 90, 10)]
    assert set(placed) == {"b"}
    member(scene, "b").num_others = 100
    assert await scene.dispatch(range(900, 909), model="poet") == "a"
    base = Counter([await scene.dispatch(range(i, i + 9), model="base") for i in range(0, 90, 10)])
    assert set(base) == {"a"}  # b has work from others, and c does not serve the model
