"""Many replicas as one: the live dispatcher, membership, index and policy on simulated workers."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from expediter.cluster.discovery import KVEventSource
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.handover import Dialect, Splitting
from expediter.cluster.membership import Membership, Subscriber
from expediter.cluster.rebalancer import Rebalancer
from expediter.cluster.traffic import TrafficLog
from expediter.config import DisaggregationConfig, RoutingConfig, WorkerEndpoint
from expediter.load import WorkerId, WorkerRole
from expediter.routing.disaggregated import Disaggregated
from expediter.routing.policy import RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.simulation.client import Network, SimulatedClient
from expediter.simulation.executor import Pipeline
from expediter.simulation.fabric import Fabric
from expediter.simulation.handing import Hands
from expediter.simulation.lag import Lags
from expediter.simulation.load_pages import WorkerPages
from expediter.simulation.pair_bodies import SimulatedBodies
from expediter.simulation.peers import Neighbourhood
from expediter.simulation.prefix_copy import Fetcher, PrefixCopies
from expediter.simulation.subscriber import SimulatedSubscriber
from expediter.simulation.trouble import (
    Crash,
    Fault,
    NetworkDelay,
    Slowdown,
    StaleLoad,
    Struck,
    TransferFailure,
    strike,
)
from expediter.simulation.worker import SimulatedWorker, WorkerModel

__all__ = [
    "Crash",
    "Fault",
    "FleetModel",
    "NetworkDelay",
    "SimulatedFleet",
    "Slowdown",
    "StaleLoad",
    "TransferFailure",
]

HEALTH_SECONDS = 1.0
EXPIRE_SECONDS = 1.0
SCHEME = "simulated://"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """What is simulated; `num_workers` replicas of one kind, each on `gpus_per_worker` GPUs.

    The first `num_prefill` of them compute prompts for the next `num_decode`; the rest takes
    either part. KV then moves over `fabric`, as `disaggregation` says.
    """

    num_workers: int
    worker: WorkerModel
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    network: Network = field(default_factory=Network)
    faults: Sequence[Fault] = ()
    publishes_events: bool = True
    gpus_per_worker: int = 1
    num_prefill: int = 0
    num_decode: int = 0
    fabric: Fabric = field(default_factory=Fabric)
    disaggregation: DisaggregationConfig = field(default_factory=DisaggregationConfig)

    @property
    def num_gpus(self) -> int:
        """All of them."""
        return self.num_workers * self.gpus_per_worker

    @property
    def has_pairs(self) -> bool:
        """Whether workers have roles."""
        return self.num_prefill + self.num_decode > 0

    def role(self, number: int) -> WorkerRole:
        """Of a worker, by its number."""
        if number < self.num_prefill:
            return WorkerRole.PREFILL
        is_decode = number < self.num_prefill + self.num_decode
        return WorkerRole.DECODE if is_decode else WorkerRole.BOTH


class SimulatedFleet:
    """A dispatcher with workers behind it; use within `running`."""

    def __init__(self, model: FleetModel, *, policy: RoutingPolicy, seed: int = 0) -> None:
        """All chance in the network comes from `seed`."""
        clock = asyncio.get_running_loop().time
        names = [WorkerId(f"worker-{number}") for number in range(model.num_workers)]
        self._model = model
        self._rng = random.Random(f"network {seed}")
        self.lags = Lags()
        self.links = model.fabric.links(names, rng=random.Random(f"links {seed}"))
        self.roles = {name: model.role(number) for number, name in enumerate(names)}
        self.hands = self._hands(names) if model.has_pairs else {}
        self.workers = {w.worker_id: w for w in _workers(model, names, self.hands)}
        self.pages = {name: self._pages(worker) for name, worker in self.workers.items()}
        self._index = PrefixIndex(
            clock=clock,
            block_size=model.worker.kv_cache.block_size,
            assumed_capacity=model.routing.assumed_blocks,
        )
        self.membership = Membership(
            connect=self._connect,
            index=self._index,
            interval_seconds=HEALTH_SECONDS,
            clock=clock,
            subscribe=self._subscribe,
        )
        self.dispatcher = Dispatcher(
            membership=self.membership,
            index=self._index,
            policy=policy,
            config=model.routing,
            clock=clock,
        )
        self.dispatcher.traffic = TrafficLog(clock=clock, capacity=0)  # nobody asks
        if model.has_pairs:
            self._split(model.disaggregation)
        self._copies = self._prefix_copies(policy) if isinstance(policy, Fetcher) else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All workers up and known, faults to come; all gone afterwards."""
        async with asyncio.TaskGroup() as tasks:
            for worker in self.workers.values():
                worker.start(tasks)
                self.membership.add(self._endpoint(worker))
            others = [
                tasks.create_task(self.membership.run(), name="membership"),
                tasks.create_task(self._expire(), name="expire"),
            ]
            await self._ready()
            others += [tasks.create_task(self._strike(f, tasks)) for f in self._model.faults]
            if self._model.disaggregation.rebalance.enabled:
                others.append(tasks.create_task(self._rebalancer().run(), name="rebalancer"))
            try:
                yield
            finally:
                # The index goes too: nobody needs to take out of it what each of them held.
                self.membership.members.clear()
                for task in others:
                    task.cancel()
                for worker in self.workers.values():
                    await worker.stop()

    @property
    def num_steps(self) -> int:
        """Of all workers."""
        return sum(worker.executor.num_steps for worker in self.workers.values())

    def received_bytes(self, worker_id: WorkerId) -> int:
        """KV that came to a worker from others."""
        return self.links.received_bytes[worker_id]

    async def _ready(self) -> None:
        while len(self.membership.ready()) < len(self.workers):  # noqa: ASYNC110 - costs nothing
            await asyncio.sleep(HEALTH_SECONDS)

    async def _expire(self) -> None:
        """As the gateway does."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self._index.expire()

    async def _strike(self, fault: Fault, tasks: asyncio.TaskGroup) -> None:
        worker = list(self.workers.values())[fault.worker]
        struck = Struck(
            worker=worker, pages=self.pages[worker.worker_id], lags=self.lags, links=self.links
        )
        await strike(fault, struck, tasks)

    def _split(self, config: DisaggregationConfig) -> None:
        """As the gateway does."""
        clock = asyncio.get_running_loop().time
        self.dispatcher.split(
            Splitting(
                bodies=SimulatedBodies(),
                policy=Disaggregated.configured(config, clock=clock),
                lease_seconds=config.lease_seconds,
            )
        )
        self.membership.speak(None if config.handover == "auto" else Dialect(config.handover))

    def _rebalancer(self) -> Rebalancer:
        return Rebalancer(
            self._model.disaggregation.rebalance,
            membership=self.membership,
            work=self.dispatcher.work,
            clock=asyncio.get_running_loop().time,
        )

    def _hands(self, names: Sequence[WorkerId]) -> dict[WorkerId, Hands]:
        fabric, block_size = self._model.fabric, self._model.worker.kv_cache.block_size
        near = Neighbourhood(
            self.links, lags=self.lags, bytes_per_block=fabric.kv_bytes_per_token * block_size
        )
        seconds = self._model.disaggregation.lease_seconds
        return {
            name: Hands(
                name,
                near=near,
                block_size=block_size,
                lease_seconds=seconds,
                overlaps=fabric.overlaps,
            )
            for name in names
        }

    def _prefix_copies(self, fetcher: Fetcher) -> PrefixCopies:
        return PrefixCopies(
            fetcher,
            workers=self.workers,
            links=self.links,
            bytes_per_token=self._model.fabric.kv_bytes_per_token,
        )

    def _pages(self, worker: SimulatedWorker) -> WorkerPages:
        model = self._model
        is_stale = any(isinstance(fault, StaleLoad) for fault in model.faults)
        return WorkerPages(
            worker,
            hands=self.hands.get(worker.worker_id),
            block_size=model.worker.kv_cache.block_size,
            reports_load=is_stale or model.network.load_reports,
        )

    def _connect(self, endpoint: WorkerEndpoint) -> SimulatedClient:
        worker = self._worker_at(endpoint.url)
        client = SimulatedClient(
            worker, self._model.network, lags=self.lags, pages=self.pages[worker.worker_id]
        )
        if self._copies is not None:
            client.prepare = partial(self._copies.prepare, worker.worker_id)
        return client

    def _subscribe(self, source: KVEventSource, worker_id: WorkerId) -> Subscriber:
        return SimulatedSubscriber(
            self._worker_at(source.events),
            worker_id=worker_id,
            index=self._index,
            network=self._model.network,
            lags=self.lags,
            rng=self._rng,
        )

    def _endpoint(self, worker: SimulatedWorker) -> WorkerEndpoint:
        url = f"{SCHEME}{worker.worker_id}"
        return WorkerEndpoint(
            url=url,
            worker_id=worker.worker_id,
            role=self.roles[worker.worker_id],
            kv_events=url if self._model.publishes_events else None,
        )

    def _worker_at(self, url: str) -> SimulatedWorker:
        return self.workers[WorkerId(url.removeprefix(SCHEME))]


def _workers(
    model: FleetModel, names: Sequence[WorkerId], hands: dict[WorkerId, Hands]
) -> Iterator[SimulatedWorker]:
    """Neighbours share a pipeline, if theirs has stages."""
    num_stages = model.worker.num_stages
    assert num_stages == 1 or not hands, "what a stage has written is not known"
    pipeline = None
    for number, name in enumerate(names):
        if num_stages > 1 and number % num_stages == 0:
            pipeline = Pipeline(num_stages)
        yield SimulatedWorker(name, model.worker, pipeline=pipeline, hands=hands.get(name))
