"""A simulated worker's hand-over: the live one, on simulated links.

The model writes a step's KV evenly from its beginning to its end, and a layer can be copied as
soon as it is written. So others are told of all layers when a step begins, and what they pull
flows no faster than it is computed: many thin layers, which is what real models have.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from expediter.kvcache.pin import Pin
from expediter.load import WorkerId
from expediter.request import RequestId, SampledToken
from expediter.scheduling.output import Executor, ModelOutput, SchedulerOutput
from expediter.simulation.executor import SimulatedExecutor
from expediter.simulation.peers import Neighbourhood, SimulatedWays
from expediter.transfer.layout import KVLayout
from expediter.transfer.messages import EngineId
from expediter.worker.handover.contract import HandingWorker, Handover
from expediter.worker.handover.live import LiveHandover
from expediter.worker.handover.terms import LayerListener, Terms

NUM_LAYERS = 1
"""All layers of a step are told of at once; see above."""


class WritingExecutor:
    """A simulated model that others may watch. `overlaps` is false if only whole steps are told."""

    def __init__(self, executor: SimulatedExecutor, *, block_size: int) -> None:
        self._executor = executor
        self._block_size = block_size
        self._tell: LayerListener | None = None
        self._output: SchedulerOutput | None = None  # of a running step that others wait for

    def watch(self, listener: LayerListener | None) -> None:
        """See `WatchLayers`."""
        self._tell = listener

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        """See `Executor`."""
        if self._tell is None:
            return await self._executor.execute(output)
        self._output = output
        self._tell(NUM_LAYERS)
        try:
            return await self._executor.execute(output)
        finally:
            self._output = None

    async def close(self) -> None:
        """There is nothing to release."""

    def written_at(self, block_ids: Sequence[int]) -> float | None:
        """See `Writes`."""
        if self._output is None:
            return None
        last, size = block_ids[-1], self._block_size
        for chunk in self._output.chunks:
            start = chunk.num_computed_tokens
            end = start + chunk.num_new_tokens
            if last in chunk.block_ids[start // size : -(-end // size)]:
                return self._executor.step_ends_at
        return None


class _Awake:
    """A worker whose jump over many steps ends when KV comes or goes."""

    def __init__(self, worker: HandingWorker, executor: SimulatedExecutor) -> None:
        self._worker = worker
        self._executor = executor

    def receive_token(
        self, request_id: RequestId, token: SampledToken, *, num_cached_tokens: int
    ) -> None:
        """See `HandingWorker`."""
        self._worker.receive_token(request_id, token, num_cached_tokens=num_cached_tokens)
        self._executor.interrupt()

    def resume(
        self, request_id: RequestId, *, num_tokens: int, num_cached_tokens: int | None = None
    ) -> None:
        """See `HandingWorker`."""
        self._worker.resume(request_id, num_tokens=num_tokens, num_cached_tokens=num_cached_tokens)
        self._executor.interrupt()

    def let_go(self, pin: Pin) -> None:
        """See `HandingWorker`."""
        self._worker.let_go(pin)
        self._executor.interrupt()

    def give_up(self, request_id: RequestId) -> None:
        """See `HandingWorker`."""
        self._worker.give_up(request_id)
        self._executor.interrupt()


class _SimulatedHandover(LiveHandover):
    """Wakes the worker up as well."""

    executor: SimulatedExecutor

    def bind(self, worker: HandingWorker) -> None:
        """See `Handover`."""
        super().bind(_Awake(worker, self.executor))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """See `OwnPools`: blocks without bytes."""

    layout: KVLayout
    num_ranks: int = 1


class Hands:
    """Hands KV over for one replica: anew with each worker that it starts."""

    def __init__(
        self,
        worker_id: WorkerId,
        *,
        near: Neighbourhood,
        block_size: int,
        lease_seconds: float,
        overlaps: bool,
    ) -> None:
        """`overlaps` is false where a step's KV can be read only when the step is over."""
        self._worker_id = worker_id
        self._near = near
        self._block_size = block_size
        self._lease_seconds = lease_seconds
        self._overlaps = overlaps
        self._num_starts = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self._handover: LiveHandover | None = None

    @property
    def description(self) -> dict[str, object] | None:
        """Where the KV is found, for routers; None while there is no worker."""
        return None if self._handover is None else self._handover.description()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way or held for others."""
        there = self._handover
        return there is None or not (
            there.num_incoming or there.num_outgoing or there.num_leased_blocks
        )

    def begin(
        self, executor: SimulatedExecutor, tasks: asyncio.TaskGroup
    ) -> tuple[Executor, Handover]:
        """For a new worker; what runs for it is one of `tasks`."""
        self._num_starts += 1
        clock = asyncio.get_running_loop().time
        writing = WritingExecutor(executor, block_size=self._block_size)
        engine_id = EngineId(f"{self._worker_id}/{self._num_starts}")

        def spawn(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
            task = tasks.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        self._handover = handover = _SimulatedHandover(
            Terms(engine_id=engine_id, host=self._worker_id, lease_seconds=self._lease_seconds),
            pools=_Blocks(_layout(self._block_size)),
            links=SimulatedWays(
                self._worker_id, engine_id, near=self._near, writes=writing, spawn=spawn
            ),
            clock=clock,
            wall_clock=clock,
            watch_layers=writing.watch if self._overlaps else None,
        )
        handover.executor = executor
        return writing, handover

    async def start(self) -> None:
        """Can be reached from now on; does not wait."""
        assert self._handover is not None, "begins first"
        await self._handover.start()

    async def end(self) -> None:
        """The worker is gone, and all that was held for others."""
        if self._handover is None:
            return
        handover, self._handover = self._handover, None
        await handover.close()
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(list(self._tasks))


def _layout(block_size: int) -> KVLayout:
    """Of blocks that nobody looks into."""
    return KVLayout(
        num_layers=NUM_LAYERS,
        num_kv_heads=1,
        num_blocks=1,
        block_size=block_size,
        head_size=1,
        dtype="float16",
        element_bytes=2,
    )
