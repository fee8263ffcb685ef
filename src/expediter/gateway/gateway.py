"""The front door of a fleet, from `start` to `stop`: everything that lives in one process."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from weakref import WeakSet

from expediter.clock import Clock
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Membership
from expediter.cluster.sources.build import build_source
from expediter.cluster.sources.follow import follow
from expediter.config import GatewayConfig, WorkerEndpoint
from expediter.gateway.endpoints import Endpoints
from expediter.gateway.handler import RequestHandler
from expediter.gateway.prompts import PromptReader
from expediter.gateway.server import HttpServer
from expediter.gateway.tenants import Tenancy
from expediter.gateway.tokenizer import PromptTokenizer
from expediter.gateway.upstream import HttpWorker
from expediter.routing.policy import RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_SWEEP_SECONDS = 1.0
SWEEPS_PER_TIMEOUT = 4


class Gateway:
    """Serves a fleet on one port. `membership` may be told of workers while it runs."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        policy: RoutingPolicy,
        tokenizer: Tokenizer | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """`tokenizer` is the model's; without one, prompts are compared as text.

        Raises ConfigError if two workers have one name, or tenants cannot be told apart.
        """
        self._config = config
        self._clients: WeakSet[HttpWorker] = WeakSet()
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._background: asyncio.Task[None] | None = None
        self._source = build_source(config.discovery) if config.discovery is not None else None
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
        )
        exact = PromptTokenizer(tokenizer, executor=self._threads) if tokenizer else None
        prompts = PromptReader(exact) if policy.uses_prefixes else None
        self._server = HttpServer(self._handler(prompts, clock), config)
        for endpoint in config.workers:
            self.membership.add(endpoint)

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
        await self._server.start()
        self._background = asyncio.create_task(self._run())
        self._background.add_done_callback(_report)
        logger.info("the gateway listens on %s:%d", self._config.host, self.port)

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
            with suppress(asyncio.CancelledError):
                await self._background
        self._threads.shutdown(cancel_futures=True)

    def _handler(self, prompts: PromptReader | None, clock: Clock) -> RequestHandler:
        endpoints = Endpoints(
            membership=self.membership,
            dispatcher=self.dispatcher,
            index=self.index,
            clock=clock,
        )
        tenancy = self._config.tenancy
        return RequestHandler(
            endpoints=endpoints,
            dispatcher=self.dispatcher,
            prompts=prompts,
            tenancy=Tenancy(tenancy, clock=clock) if tenancy is not None else None,
        )

    def _connect(self, endpoint: WorkerEndpoint) -> HttpWorker:
        client = HttpWorker(endpoint, self._config)
        self._clients.add(client)
        return client

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.membership.run())
            tasks.create_task(self._sweep())
            if self._source is not None:
                tasks.create_task(follow(self.membership, self._source))

    async def _sweep(self) -> None:
        """Enforce every time-out, in steps that are fine enough for the shortest."""
        config, loop = self._config, asyncio.get_running_loop()
        shortest = min(
            config.first_byte_seconds,
            config.idle_seconds,
            config.header_seconds,
            config.keep_alive_seconds,
        )
        interval = min(MAX_SWEEP_SECONDS, shortest / SWEEPS_PER_TIMEOUT)
        while True:
            await asyncio.sleep(interval)
            now = loop.time()
            self._server.sweep(now)
            for client in list(self._clients):
                client.sweep(now)
            self.index.expire()


def _report(background: asyncio.Task[None]) -> None:
    """Workers are no longer watched: whoever awaits `run` is told, and the log in any case."""
    if not background.cancelled() and (error := background.exception()) is not None:
        logger.critical("the gateway's background work failed", exc_info=error)
