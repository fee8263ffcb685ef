"""One replica: the live worker, scheduler and caches on a simulated model.

A replica outlives its workers. When it crashes, its worker is gone with all it cached, and what
it was answering is lost; when it starts again, an empty worker takes its place.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.errors import ClusterError, WorkerLost, WorkerRefused
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, KVCacheEvent
from expediter.kvcache.hashing import CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.load import WorkerId, WorkerLoad
from expediter.request import Request, RequestOutput
from expediter.scheduling.output import Executor
from expediter.scheduling.scheduler import Scheduler
from expediter.simulation.costs import CostModel
from expediter.simulation.errands import as_errand
from expediter.simulation.executor import Pipeline, SimulatedExecutor
from expediter.worker.handover.contract import Handover
from expediter.worker.handover.legs import Leg
from expediter.worker.worker import Worker

Listener = Callable[[Sequence[KVCacheEvent]], None]
Sink = Callable[[RequestOutput | ClusterError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerModel:
    """What a simulated worker is: its speed, its memory in tokens of KV, its settings."""

    cost: CostModel
    kv_tokens: int
    kv_cache: KVCacheConfig = field(default_factory=KVCacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    max_model_len: int = 1_000_000
    num_stages: int = 1  # of a pipeline, which so many workers share

    @property
    def num_blocks(self) -> int:
        """Blocks of KV cache."""
        return self.kv_cache.num_blocks or self.kv_tokens // self.kv_cache.block_size


class HandsOver(Protocol):
    """Moves KV for one replica: anew with each worker that it starts."""

    def begin(
        self, executor: SimulatedExecutor, tasks: asyncio.TaskGroup
    ) -> tuple[Executor, Handover]:
        """What a new worker runs on, and who moves its KV."""
        ...

    async def start(self) -> None:
        """The worker runs: it can be reached from now on."""
        ...

    async def end(self) -> None:
        """The worker is gone."""
        ...


class SimulatedWorker:
    """Takes requests while it is up. Counters cover all of its workers."""

    def __init__(
        self,
        worker_id: WorkerId,
        model: WorkerModel,
        *,
        pipeline: Pipeline | None = None,
        hands: HandsOver | None = None,
    ) -> None:
        """`hands` is for a worker that sends KV to others or receives it."""
        self.worker_id = worker_id
        self._hands = hands
        self.executor = SimulatedExecutor(model.cost, pipeline=pipeline)
        self.listeners: list[Listener] = []
        self.num_evicted_blocks = 0
        self._model = model
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None
        self._num_preemptions = 0  # of workers that are gone

    @property
    def is_up(self) -> bool:
        """Whether there is a worker that answers."""
        return self._worker is not None

    @property
    def live(self) -> Worker | None:
        """The worker that answers now."""
        return self._worker

    @property
    def num_preemptions(self) -> int:
        """Requests that lost their blocks to older ones."""
        current = self._worker.scheduler.num_preemptions if self._worker else 0
        return self._num_preemptions + current

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Bring up an empty worker, as one of `tasks`."""
        assert self._worker is None, f"{self.worker_id} is up"
        self._worker = worker = self._build(tasks)
        self._task = tasks.create_task(self._run(worker), name=self.worker_id)
        self._publish([AllBlocksCleared()])

    async def stop(self) -> None:
        """Take the worker away; what it was answering is lost."""
        if self._worker is None:
            return
        assert self._task is not None
        self._num_preemptions = self.num_preemptions
        worker, self._worker = self._worker, None
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._hands is not None:
            await self._hands.end()
        for sink in worker.open_sinks():
            cast("Sink", sink)(WorkerLost(f"{self.worker_id} crashed"))

    def submit(self, request: Request, sink: Sink, *, leg: Leg | None = None) -> None:
        """As `Worker.submit`; the sink gets WorkerLost if the replica crashes."""
        if self._worker is None:
            raise WorkerRefused(f"{self.worker_id} is down")
        self._worker.submit(request, sink, leg=leg)
        self.executor.interrupt()

    def abort(self, request: Request) -> None:
        """Drop a request, if it is still here."""
        if self._worker is not None and self._worker.abort(request.request_id):
            self.executor.interrupt()

    def load(self) -> WorkerLoad:
        """How busy it is now; not at all if it is down."""
        return self._worker.load() if self._worker is not None else WorkerLoad()

    async def _run(self, worker: Worker) -> None:
        if self._hands is not None:
            await self._hands.start()
        await as_errand(worker.run())

    def _build(self, tasks: asyncio.TaskGroup) -> Worker:
        model, hands = self._model, self._hands
        kv_cache = KVCacheManager(
            model.kv_cache, num_blocks=model.num_blocks, namespace=CacheNamespace(model="simulated")
        )
        scheduler = Scheduler(
            model.scheduler,
            kv_cache=kv_cache,
            clock=asyncio.get_running_loop().time,
            max_model_len=model.max_model_len,
            has_chunks=hands is not None,  # those who copy have to know what a step writes
        )
        executor: Executor = self.executor
        handover: Handover | None = None
        if hands is not None:
            executor, handover = hands.begin(self.executor, tasks)
        return Worker(
            scheduler=scheduler, executor=executor, publish=self._publish, handover=handover
        )

    def _publish(self, events: Sequence[KVCacheEvent]) -> None:
        for event in events:
            if isinstance(event, BlockRemoved):
                self.num_evicted_blocks += len(event.block_hashes)
        for listener in self.listeners:
            listener(events)
