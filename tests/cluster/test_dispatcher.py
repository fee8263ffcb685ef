"""A request's story: where it goes, when it is tried again, and what is remembered of it."""

import asyncio

import pytest
from fake_client import FakeClient, FakeSink

from expediter.cluster.client import ForwardedRequest, Usage
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Membership, Model, WorkerStatus
from expediter.config import RoutingConfig, WorkerEndpoint
from expediter.errors import WorkerLost, WorkerRefused, WorkerSilent, WorkerUnavailable
from expediter.load import WorkerId
from expediter.routing.cache_aware import CacheAware
from expediter.routing.feedback import (
    Failed,
    Feedback,
    Finished,
    FirstToken,
    WorkerAdded,
    WorkerRemoved,
)
from expediter.routing.policy import RoundRobin, RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt
from expediter.routing.view import RoutedRequest

REQUEST = ForwardedRequest(method=b"POST", target=b"/v1/completions", body=b"{}")


class Scene:
    """Workers a, b, ... that are all up."""

    def __init__(self, *clients: FakeClient, policy: RoutingPolicy | None = None) -> None:
        self.index = PrefixIndex(clock=lambda: 0.0, block_size=4, assumed_capacity=100)
        by_name = {f"http://{c.name}": c for c in clients}
        self.membership = Membership(
            connect=lambda endpoint: by_name[endpoint.url], index=self.index, interval_seconds=1.0
        )
        for client in clients:
            endpoint = WorkerEndpoint(url=f"http://{client.name}")
            self.membership.add(endpoint).health = WorkerStatus.UP
        self.dispatcher = Dispatcher(
            membership=self.membership,
            index=self.index,
            policy=policy or CacheAware(load_weight=0, max_imbalance=0.2, slack_tokens=100),
            config=RoutingConfig(),
            clock=lambda: 0.0,
        )
        self.used: Usage | None = None
        self.sink = FakeSink()

    async def dispatch(self, tokens: range | None = None, *, model: str | None = None) -> str:
        """Returns the name of the worker that answered."""
        prompt = token_prompt(tokens) if tokens is not None else None
        request = RoutedRequest(request_id="r", model=model, prompt=prompt)
        self.sink = FakeSink()
        self.sink.used = self.used
        await self.dispatcher.dispatch(request, REQUEST, self.sink)
        return self.sink.body.decode()

    def in_flight(self) -> list[int]:
        return [self.dispatcher.work.num_requests(w) for w in self.membership.members]


async def test_a_conversation_stays_with_the_worker_that_answered_it() -> None:
    scene = Scene(FakeClient("a"), FakeClient("b"), FakeClient("c"))
    home = await scene.dispatch(range(10))
    await scene.dispatch(range(100, 110))
    assert await scene.dispatch(range(20)) == home
    decision = scene.sink.placements[-1]
    assert (decision.matched_tokens, decision.num_tokens) == (8, 20)
    assert decision.reason == "longest-match"
    assert decision.scores.keys() == {"a", "b", "c"}


@pytest.mark.parametrize("failure", [WorkerRefused("no"), WorkerLost("gone")])
async def test_a_request_that_got_no_answer_is_tried_at_another_worker(failure) -> None:
    scene = Scene(FakeClient("a", refusal=failure), FakeClient("b"))
    assert await scene.dispatch(range(10)) == "b"
    assert [d.worker_id for d in scene.sink.placements] == ["a", "b"]
    assert scene.dispatcher.log.num_retries == 1


async def test_no_worker_is_tried_twice_and_the_last_error_is_the_answer() -> None:
    clients = [FakeClient(name, refusal=WorkerLost(name)) for name in "abc"]
    scene = Scene(*clients)
    with pytest.raises(WorkerLost):
        await scene.dispatch(range(10))
    assert [c.num_requests for c in clients] == [1, 1, 1]
    assert scene.in_flight() == [0, 0, 0]


async def test_a_silent_worker_may_be_at_work_so_nobody_else_is_asked() -> None:
    scene = Scene(FakeClient("a", refusal=WorkerSilent("...")), FakeClient("b"))
    with pytest.raises(WorkerSilent):
        await scene.dispatch(range(10))
    assert len(scene.sink.placements) == 1


async def test_after_the_first_byte_nothing_is_tried_again() -> None:
    scene = Scene(FakeClient("a", failure=WorkerLost("gone")), FakeClient("b"))
    with pytest.raises(WorkerLost):
        await scene.dispatch(range(10))
    assert scene.sink.body == b"a"
    assert scene.in_flight() == [0, 0]


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_an_error_is_an_answer_and_earns_no_prefix(status: int) -> None:
    scene = Scene(FakeClient("a", status=status), FakeClient("b"))
    assert await scene.dispatch(range(10)) == "a"
    assert scene.index.match(token_prompt(range(10))) == {}


async def test_without_workers_there_is_no_answer() -> None:
    with pytest.raises(WorkerUnavailable):
        await Scene().dispatch(range(10))


async def test_a_worker_that_refused_is_down_at_once() -> None:
    scene = Scene(FakeClient("a", refusal=WorkerRefused("no")), FakeClient("b"))
    await scene.dispatch(range(10))
    assert [m.worker_id for m in scene.membership.ready()] == ["b"]


async def test_requests_in_flight_count_as_load_until_they_end_or_are_cancelled() -> None:
    gate = asyncio.Event()
    scene = Scene(FakeClient("a", gate=gate), FakeClient("b", gate=gate))
    tasks = [asyncio.create_task(scene.dispatch(range(i, i + 9))) for i in (0, 100, 200, 300)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert scene.in_flight() == [2, 2]
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    gate.set()
    await asyncio.wait(tasks)
    assert scene.in_flight() == [0, 0]


async def test_a_model_goes_to_the_workers_that_serve_it() -> None:
    scene = Scene(FakeClient("a"), FakeClient("b"))
    scene.membership.members[WorkerId("b")].models = {"m": Model(id="m")}
    assert {await scene.dispatch(range(i, i + 9), model="m") for i in range(0, 90, 10)} == {"b"}
    assert await scene.dispatch(range(500, 509), model="unknown") == "a"


class Pupil(RoundRobin):
    """Takes turns and keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Feedback] = []

    def observe(self, feedback: Feedback) -> None:
        if not isinstance(feedback, WorkerAdded | WorkerRemoved):
            self.heard.append(feedback)


async def test_a_policy_that_learns_hears_how_every_try_went() -> None:
    pupil = Pupil()
    scene = Scene(FakeClient("a", refusal=WorkerLost("gone")), FakeClient("b"), policy=pupil)
    scene.used = Usage(prompt_tokens=10, cached_tokens=8, output_tokens=3)
    await scene.dispatch(range(10))
    assert pupil.heard == [
        Failed(request_id="r"),
        FirstToken(request_id="r"),
        Finished(request_id="r", cached_tokens=8, output_tokens=3),
    ]


async def test_an_error_for_an_answer_is_a_failure_to_a_policy_that_learns() -> None:
    pupil = Pupil()
    await Scene(FakeClient("a", status=400), policy=pupil).dispatch(range(10))
    assert pupil.heard == [Failed(request_id="r")]


async def test_a_client_that_leaves_ends_the_story_for_a_policy_that_learns() -> None:
    pupil = Pupil()
    scene = Scene(FakeClient("a", gate=asyncio.Event()), policy=pupil)
    task = asyncio.create_task(scene.dispatch(range(10)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pupil.heard[-1] == Failed(request_id="r")
    assert scene.in_flight() == [0]
