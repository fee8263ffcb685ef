"""The front door of a fleet, from `start` to `stop`: everything that lives in one process."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from weakref import WeakSet

from msgspec.structs import replace

from expediter.clock import Clock
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Membership, worker_id_of
from expediter.cluster.rebalancer import Rebalancer
from expediter.cluster.sources.build import build_source
from expediter.cluster.sources.follow import follow
from expediter.config import GatewayConfig, RoutingConfig, WorkerEndpoint
from expediter.errors import ConfigError
from expediter.gateway.admission import Admission
from expediter.gateway.endpoints import Endpoints
from expediter.gateway.handler import RequestHandler
from expediter.gateway.memory import keep_freed_memory
from expediter.gateway.metrics import GatewayMetrics
from expediter.gateway.observations import Observations
from expediter.gateway.outbox import Outbox
from expediter.gateway.prompts import PromptReader
from expediter.gateway.reconfigure import (
    changed_workers,
    endpoints_of,
    settled,
    settled_routing,
)
from expediter.gateway.reports import Reports
from expediter.gateway.server import HttpServer
from expediter.gateway.splitting import build_splitting, configured_dialect
from expediter.gateway.threads import make_way
from expediter.gateway.tls import client_tls, load_certificate, speaks_tls, worker_tls
from expediter.gateway.tokenizer import PromptTokenizer
from expediter.gateway.upstream import HttpWorker
from expediter.routing.outstanding import OutstandingWork
from expediter.routing.policy import RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_SWEEP_SECONDS = 1.0
SWEEPS_PER_TIMEOUT = 4

BuildPolicy = Callable[[RoutingConfig], RoutingPolicy]


class Gateway:
    """Serves a fleet on one port. `membership` may be told of workers while it runs."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        policy: RoutingPolicy,
        tokenizer: Tokenizer | None = None,
        clock: Clock = time.monotonic,
        build_policy: BuildPolicy | None = None,
        work: OutstandingWork | None = None,
    ) -> None:
        """`tokenizer` is the model's; without one, prompts are compared as text.

        `build_policy` makes another policy at run time; `work` counts what is in flight, where
        other processes have to see it.

        Raises ConfigError if two workers have one name, tenants cannot be told apart, or a file
        cannot be used.
        """
        self.config = self._read_config = config
        self._clock = clock
        self._build_policy = build_policy
        self._clients: WeakSet[HttpWorker] = WeakSet()
        self._worker_tls = (
            worker_tls(config.worker_tls) if any(map(speaks_tls, config.workers)) else None
        )
        self._outbox = Outbox()
        self._threads = ThreadPoolExecutor(1, "tokenizer", initializer=make_way)
        self._background: asyncio.Task[None] | None = None
        self._source = build_source(config.discovery) if config.discovery is not None else None
        self._tasks: asyncio.TaskGroup | None = None
        self._wire(policy, tokenizer, work)
        for endpoint in config.workers:
            self.membership.add(endpoint)

    def _wire(
        self, policy: RoutingPolicy, tokenizer: Tokenizer | None, work: OutstandingWork | None
    ) -> None:
        config, clock = self.config, self._clock
        routing = config.routing
        self.index = PrefixIndex(
            clock=clock, block_size=routing.block_size, assumed_capacity=routing.assumed_blocks
        )
        self.membership = Membership(
            connect=self._connect,
            index=self.index,
            interval_seconds=config.health_interval_seconds,
            config=config.health,
            clock=clock,
        )
        self.dispatcher = Dispatcher(
            membership=self.membership,
            index=self.index,
            policy=policy,
            config=routing,
            clock=clock,
            work=work,
        )
        self.dispatcher.split(
            build_splitting(config.disaggregation, num_processes=config.processes, clock=clock)
        )
        self.membership.speak(configured_dialect(config.disaggregation))
        self._face_clients(tokenizer)

    def _face_clients(self, tokenizer: Tokenizer | None) -> None:
        config, clock = self.config, self._clock
        self.reports = Reports(
            membership=self.membership,
            dispatcher=self.dispatcher,
            index=self.index,
            observations=Observations(is_served=self._is_served),
            clock=clock,
        )
        self.metrics = GatewayMetrics(self.reports)
        endpoints = Endpoints(self.reports, self.metrics)
        exact = PromptTokenizer(tokenizer, executor=self._threads) if tokenizer else None
        handler = RequestHandler(
            endpoints=endpoints,
            dispatcher=self.dispatcher,
            prompts=PromptReader(exact, name=self.index.name),
            observations=self.reports.observations,
            clock=clock,
        )
        self._admission = Admission(config, handler=handler, endpoints=endpoints, clock=clock)
        tls = client_tls(config.tls) if config.tls else None
        self._server = HttpServer(handler, config, self._outbox, tls)

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._server.port

    @property
    def num_connections(self) -> int:
        """Open connections to workers."""
        return sum(client.num_connections for client in self._clients)

    async def start(self) -> None:
        """Listen, and begin to watch the workers; returns before any has answered.

        Raises OSError if the address is taken.
        """
        keep_freed_memory()
        await self._server.start()
        self._background = asyncio.create_task(self._run())
        self._background.add_done_callback(_report)
        logger.info("the gateway listens on %s:%d", self.config.host, self.port)

    async def run(self) -> None:
        """Returns after `stop`; raises what went wrong in the background."""
        assert self._background is not None
        with suppress(asyncio.CancelledError):
            await asyncio.shield(self._background)

    async def stop(self) -> None:
        """Take no more requests, let those in flight finish for a while, and drop the rest."""
        await self._server.stop()
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait((self._background,))  # what it failed of, `run` has told
        self._threads.shutdown(cancel_futures=True)
        self._admission.close()

    def reconfigure(self, config: GatewayConfig) -> list[str]:
        """Take over what is different from the settings read before.

        Returns the keys of what would need a restart. Raises ConfigError, and nothing is changed.
        """
        old = self._read_config
        new, kept = settled(old, config)
        workers = endpoints_of(new)
        policy = self._policy(new.routing) if new.routing != old.routing else None
        if new.tls is not None:
            client_tls(new.tls)
        self._admission.configure(new)
        if policy is not None:
            self.dispatcher.use(policy, new.routing)
        else:
            new = replace(new, routing=self.config.routing)
        if new.tls is not None and self._server.tls is not None:
            load_certificate(self._server.tls, new.tls)
        self._apply(new)
        for endpoint in changed_workers(self.membership, endpoints_of(old), workers):
            self._in_background(self._take_place(endpoint))
        self._read_config = settled(old, config)[0]
        return kept

    def use_routing(self, routing: RoutingConfig) -> None:
        """Place by these settings from now on; raises ConfigError if they cannot be used."""
        _, kept = settled_routing(self.config.routing, routing)
        if kept:
            raise ConfigError(f"{', '.join(kept)} cannot change while the gateway runs")
        self.dispatcher.use(self._policy(routing), routing)
        self._apply(replace(self.config, routing=routing))

    def reopen_logs(self) -> None:
        """Write the access log to the file that has its name now."""
        self._admission.reopen()

    def _policy(self, routing: RoutingConfig) -> RoutingPolicy:
        if self._build_policy is None:
            raise ConfigError("this gateway has one policy, which cannot be exchanged")
        return self._build_policy(routing)

    def _apply(self, config: GatewayConfig) -> None:
        """Time-outs and sizes, as of the next request or connection."""
        self.config = self._server.config = config
        for client in self._clients:
            client.config = config

    def _connect(self, endpoint: WorkerEndpoint) -> HttpWorker:
        if self._worker_tls is None and speaks_tls(endpoint):
            self._worker_tls = worker_tls(self.config.worker_tls)
        client = HttpWorker(endpoint, self.config, tls=self._worker_tls, outbox=self._outbox)
        self._clients.add(client)
        return client

    def _is_served(self, model: str) -> bool:
        return any(model in member.models for member in self.membership.members.values())

    def _in_background(self, work: Coroutine[object, object, None]) -> None:
        assert self._tasks is not None, "not running"
        self._tasks.create_task(work)

    async def _take_place(self, endpoint: WorkerEndpoint) -> None:
        """A worker in place of another of its name, once that has finished what it has."""
        worker_id = worker_id_of(endpoint)
        await self.membership.remove(worker_id)
        if worker_id not in self.membership.members:
            self.membership.add(endpoint)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self.membership.run())
            self._tasks.create_task(self._sweep())
            if self.config.disaggregation.rebalance.enabled:
                self._tasks.create_task(self._rebalance())
            if self._source is not None:
                self._tasks.create_task(follow(self.membership, self._source))
            self._tasks.create_task(self._admission.run())

    async def _rebalance(self) -> None:
        await Rebalancer(
            self.config.disaggregation.rebalance,
            membership=self.membership,
            work=self.dispatcher.work,
            clock=self._clock,
        ).run()

    async def _sweep(self) -> None:
        """Enforce every time-out, in steps that are fine enough for the shortest.

        Silence begins with a step, the first after the last sign of life, and ends with one.
        """
        loop = asyncio.get_running_loop()
        while True:
            config = self.config
            shortest = min(
                config.first_byte_seconds,
                config.idle_seconds,
                config.header_seconds,
                config.keep_alive_seconds,
            )
            await asyncio.sleep(min(MAX_SWEEP_SECONDS, shortest / SWEEPS_PER_TIMEOUT))
            now = loop.time()
            self._server.sweep(now)
            for client in list(self._clients):
                client.sweep(now)
            self.index.expire()


def _report(background: asyncio.Task[None]) -> None:
    """Workers are no longer watched: whoever awaits `run` is told, and the log in any case."""
    if not background.cancelled() and (error := background.exception()) is not None:
        logger.critical("the gateway's background work failed", exc_info=error)
