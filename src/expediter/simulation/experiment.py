"""Runs a workload through a simulated fleet."""

import asyncio
import gc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.errand import Errand
from expediter.errors import ClusterError, RequestError, SimulationStalled
from expediter.load import WorkerId, WorkerRole
from expediter.request import Request, RequestId, SamplingParams
from expediter.routing.policy import RoutingPolicy
from expediter.routing.prompt import named_prompt
from expediter.routing.view import RoutedRequest
from expediter.simulation.answer import Answer
from expediter.simulation.evictions import Evictions
from expediter.simulation.exchange import SimulatedRequest
from expediter.simulation.fleet import FleetModel, SimulatedFleet
from expediter.simulation.loop import run_virtual
from expediter.simulation.names import BlockNames
from expediter.simulation.worker import SimulatedWorker
from expediter.workload.replay import Ended, Replay
from expediter.workload.turn import Turn

MakePolicy = Callable[[random.Random], RoutingPolicy]
"""A fresh policy, made when the loop runs; all chance in it comes from the generator."""

OnAnswer = Callable[[Answer], None]
"""Told of each answer when it has ended, however it did."""

IDLE_SECONDS = 3600.0
"""Without a single step for so long, while requests are open, nothing will ever come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTotals:
    """What one replica did in a run; `transferred_bytes` of KV went to it from others."""

    worker_id: WorkerId
    num_prompt_tokens: int  # computed, so without cached ones and with those computed again
    num_evicted_blocks: int
    num_preemptions: int
    num_steps: int
    num_jumps: int
    busy_seconds: float
    num_recomputed_tokens: int = 0  # of those computed: cached before, and evicted
    transferred_bytes: int = 0
    role: WorkerRole = WorkerRole.BOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy on one workload: answers in order of arrival. `seconds` are virtual."""

    fleet: FleetModel
    policy: str
    answers: Sequence[Answer]
    workers: Sequence[WorkerTotals]
    seconds: float


def simulate(
    fleet: FleetModel,
    turns: Iterable[Turn],
    *,
    policy: MakePolicy,
    name: str,
    seed: int = 0,
    on_answer: OnAnswer | None = None,
) -> Run:
    """Run a workload to its end. The same arguments give the same run.

    Raises SimulationStalled if it has none.
    """
    experiment = _Experiment(fleet, name=name, seed=seed, on_answer=on_answer)
    try:
        with _without_collection():
            return run_virtual(experiment.run(turns, policy))
    except BaseExceptionGroup as group:
        raise _stall(group) or group from None


def compare(
    fleet: FleetModel,
    turns: Sequence[Turn],
    *,
    policies: Mapping[str, MakePolicy],
    seed: int = 0,
) -> list[Run]:
    """One run a policy, all with the same turns and the same seed."""
    return [
        simulate(fleet, turns, policy=policy, name=name, seed=seed)
        for name, policy in policies.items()
    ]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Millions of objects live long here and none are cycles: looking for those is in vain.

    Afterwards they count as old; as young ones the next collection would go through them all.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class _Experiment:
    def __init__(
        self, fleet: FleetModel, *, name: str, seed: int, on_answer: OnAnswer | None
    ) -> None:
        self._model = fleet
        self._name = name
        self._seed = seed
        self._on_answer = on_answer
        self._answers: list[Answer] = []
        self._open: dict[Answer, Errand] = {}
        self._names = BlockNames(fleet.worker.kv_cache.block_size)
        self._sampling: dict[int, SamplingParams] = {}  # by the answer's length

    async def run(self, turns: Iterable[Turn], policy: MakePolicy) -> Run:
        self._loop = asyncio.get_running_loop()
        fleet = SimulatedFleet(
            self._model,
            policy=policy(random.Random(f"policy {self._seed}")),
            seed=self._seed,
        )
        evictions = _listen(fleet, num_blocks=self._model.worker.num_blocks)
        async with fleet.running():
            started = self._loop.time()
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch(fleet), name="watch")
                await self._replay(turns, fleet.dispatcher)
                watch.cancel()
            seconds = self._loop.time() - started
            workers = _totals(fleet, evictions)
        return Run(
            fleet=self._model,
            policy=self._name,
            answers=self._answers,
            workers=workers,
            seconds=seconds,
        )

    async def _replay(self, turns: Iterable[Turn], dispatcher: Dispatcher) -> None:
        def start(turn: Turn, ended: Ended) -> None:
            answer = Answer(turn, now=self._loop.time())
            self._answers.append(answer)
            errand = self._open[answer] = Errand(ended)
            errand.take(self._send(answer, dispatcher))
            errand.go()

        try:
            await Replay(turns, start).run()
        finally:
            for errand in list(self._open.values()):
                errand.cancel()

    async def _send(self, answer: Answer, dispatcher: Dispatcher) -> None:
        routed, forwarded = self._requests(answer, RequestId(f"request-{len(self._answers) - 1}"))
        try:
            await dispatcher.dispatch(routed, forwarded, answer)
        except (ClusterError, RequestError) as error:
            answer.status, answer.error = error.status, error.kind
        finally:
            del self._open[answer]
        if self._on_answer is not None:
            self._on_answer(answer)

    def _requests(
        self, answer: Answer, request_id: RequestId
    ) -> tuple[RoutedRequest, SimulatedRequest]:
        """The same request as the router and as the worker see it."""
        turn, block_size = answer.turn, self._model.worker.kv_cache.block_size
        names, num_output_tokens = self._names.of(turn.transcript), turn.num_output_tokens
        num_tokens = turn.transcript.num_tokens - num_output_tokens
        sampling = self._sampling.get(num_output_tokens)
        if sampling is None:
            sampling = SamplingParams(max_tokens=num_output_tokens, ignore_eos=True)
            self._sampling[num_output_tokens] = sampling
        routed = RoutedRequest(
            request_id=request_id,
            prompt=named_prompt(names, num_tokens=num_tokens, block_size=block_size),
            max_output_tokens=num_output_tokens,
            session=turn.session,
        )
        request = Request(
            request_id=request_id,
            prompt_token_ids=(),
            sampling=sampling,
            arrival_time=answer.arrived_at,
            priority=turn.priority,
            block_hashes=names,
            num_prompt_tokens=num_tokens,
            reports_progress=False,
        )
        forwarded = SimulatedRequest(
            method=b"POST",
            target=b"/v1/completions",
            request=request,
            receive=answer.receive,
            story=answer,
        )
        return routed, forwarded

    async def _watch(self, fleet: SimulatedFleet) -> None:
        """Health probes go on for ever, so the loop alone cannot see that nothing happens."""
        while True:
            before = len(self._answers), fleet.num_steps
            await asyncio.sleep(IDLE_SECONDS)
            if self._open and before == (len(self._answers), fleet.num_steps):
                raise SimulationStalled(
                    f"{len(self._open)} requests are open and no step ran for {IDLE_SECONDS:g} s"
                )


def _stall(error: BaseException) -> SimulationStalled | None:
    """The first SimulationStalled in groups of errors."""
    if isinstance(error, SimulationStalled):
        return error
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for part in within if (found := _stall(part))), None)


def _listen(fleet: SimulatedFleet, *, num_blocks: int) -> dict[WorkerId, Evictions]:
    evictions = {worker_id: Evictions(num_blocks=num_blocks) for worker_id in fleet.workers}
    for worker_id, listener in evictions.items():
        fleet.workers[worker_id].listeners.append(listener)
    return evictions


def _recomputed(fleet: SimulatedFleet, worker: SimulatedWorker, evictions: Evictions) -> int:
    """Where KV comes from other workers too, what comes again need not have been computed."""
    num_again = evictions.num_recomputed_tokens
    return min(num_again, worker.executor.num_prompt_tokens) if fleet.hands else num_again


def _totals(fleet: SimulatedFleet, evictions: Mapping[WorkerId, Evictions]) -> list[WorkerTotals]:
    return [
        WorkerTotals(
            worker_id=worker.worker_id,
            num_prompt_tokens=worker.executor.num_prompt_tokens,
            num_evicted_blocks=worker.num_evicted_blocks,
            num_preemptions=worker.num_preemptions,
            num_steps=worker.executor.num_steps,
            num_jumps=worker.executor.num_jumps,
            busy_seconds=worker.executor.busy_seconds,
            num_recomputed_tokens=_recomputed(fleet, worker, evictions[worker.worker_id]),
            transferred_bytes=fleet.received_bytes(worker.worker_id),
            role=fleet.roles[worker.worker_id],
        )
        for worker in fleet.workers.values()
    ]
