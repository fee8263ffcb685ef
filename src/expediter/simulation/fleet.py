"""Many replicas as one: the live dispatcher, membership, index and policy on simulated workers."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from expediter.cluster.discovery import KVEventSource
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Membership, Subscriber
from expediter.config import RoutingConfig, WorkerEndpoint
from expediter.load import WorkerId
from expediter.routing.policy import RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.simulation.client import Network, SimulatedClient, SimulatedSubscriber
from expediter.simulation.executor import Pipeline
from expediter.simulation.worker import SimulatedWorker, WorkerModel

HEALTH_SECONDS = 1.0
EXPIRE_SECONDS = 1.0
SCHEME = "simulated://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A worker dies `at` seconds into the run and is back, empty, after `seconds`."""

    worker: int
    at: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A worker's steps take `factor` times as long from `at`, for `seconds`."""

    worker: int
    at: float
    seconds: float
    factor: float


Fault = Crash | Slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """What is simulated; `num_workers` replicas of one kind, each on `gpus_per_worker` GPUs."""

    num_workers: int
    worker: WorkerModel
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    network: Network = field(default_factory=Network)
    faults: Sequence[Fault] = ()
    publishes_events: bool = True
    gpus_per_worker: int = 1

    @property
    def num_gpus(self) -> int:
        """All of them."""
        return self.num_workers * self.gpus_per_worker


class SimulatedFleet:
    """A dispatcher with workers behind it; use within `running`."""

    def __init__(self, model: FleetModel, *, policy: RoutingPolicy, rng: random.Random) -> None:
        clock = asyncio.get_running_loop().time
        self._model = model
        self._rng = rng
        self.workers = {worker.worker_id: worker for worker in _workers(model)}
        self._index = PrefixIndex(
            clock=clock,
            block_size=model.worker.kv_cache.block_size,
            assumed_capacity=model.routing.assumed_blocks,
        )
        self._membership = Membership(
            connect=self._connect,
            index=self._index,
            interval_seconds=HEALTH_SECONDS,
            clock=clock,
            subscribe=self._subscribe,
        )
        self.dispatcher = Dispatcher(
            membership=self._membership,
            index=self._index,
            policy=policy,
            config=model.routing,
            clock=clock,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All workers up and known, faults to come; all gone afterwards."""
        async with asyncio.TaskGroup() as tasks:
            for worker in self.workers.values():
                worker.start(tasks)
                self._membership.add(_endpoint(worker, has_events=self._model.publishes_events))
            others = [
                tasks.create_task(self._membership.run(), name="membership"),
                tasks.create_task(self._expire(), name="expire"),
            ]
            await self._ready()
            others += [tasks.create_task(self._strike(f, tasks)) for f in self._model.faults]
            try:
                yield
            finally:
                for task in others:
                    task.cancel()
                for worker in self.workers.values():
                    await worker.stop()

    async def _ready(self) -> None:
        while len(self._membership.ready()) < len(self.workers):  # noqa: ASYNC110 - costs nothing
            await asyncio.sleep(HEALTH_SECONDS)

    async def _expire(self) -> None:
        """As the gateway does."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self._index.expire()

    async def _strike(self, fault: Fault, tasks: asyncio.TaskGroup) -> None:
        worker = list(self.workers.values())[fault.worker]
        await asyncio.sleep(fault.at)
        match fault:
            case Crash():
                await worker.stop()
                await asyncio.sleep(fault.seconds)
                worker.start(tasks)
            case Slowdown():
                worker.executor.slow_down(fault.factor)
                await asyncio.sleep(fault.seconds)
                worker.executor.slow_down(1 / fault.factor)

    def _connect(self, endpoint: WorkerEndpoint) -> SimulatedClient:
        return SimulatedClient(self._worker_at(endpoint.url), self._model.network)

    def _subscribe(self, source: KVEventSource, worker_id: WorkerId) -> Subscriber:
        return SimulatedSubscriber(
            self._worker_at(source.events),
            worker_id=worker_id,
            index=self._index,
            network=self._model.network,
            rng=self._rng,
        )

    def _worker_at(self, url: str) -> SimulatedWorker:
        return self.workers[WorkerId(url.removeprefix(SCHEME))]


def _workers(model: FleetModel) -> Iterator[SimulatedWorker]:
    """Neighbours share a pipeline, if theirs has stages."""
    num_stages = model.worker.num_stages
    pipeline = None
    for number in range(model.num_workers):
        if num_stages > 1 and number % num_stages == 0:
            pipeline = Pipeline(num_stages)
        yield SimulatedWorker(WorkerId(f"worker-{number}"), model.worker, pipeline=pipeline)


def _endpoint(worker: SimulatedWorker, *, has_events: bool) -> WorkerEndpoint:
    url = f"{SCHEME}{worker.worker_id}"
    return WorkerEndpoint(
        url=url, worker_id=worker.worker_id, kv_events=url if has_events else None
    )
