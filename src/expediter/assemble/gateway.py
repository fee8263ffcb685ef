"""A gateway from its settings, until a signal: one process, or one of several."""

import asyncio
import gc
import logging
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from expediter.assemble.descriptors import raise_descriptor_limit
from expediter.assemble.policies import build_policy
from expediter.config import AdminConfig, GatewayConfig, RoutingConfig
from expediter.dashboard.later import made_later
from expediter.dashboard.pages import page_routes
from expediter.dashboard.routes import dashboard_routes
from expediter.errors import ConfigError, GatewayFailed
from expediter.fleet.plan import local_url
from expediter.gateway.admin import AdminServer, create_admin_app
from expediter.gateway.gateway import Gateway
from expediter.gateway.operator import GatewayOperator, Operator
from expediter.gateway.processes import Share, serve_processes
from expediter.gateway.raw_traffic import raw_traffic_route
from expediter.gateway.threads import be_prompt
from expediter.routing.policy import RoutingPolicy
from expediter.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

GC_THRESHOLD = 20_000  # new containers in a gateway before it looks for cycles; Python's is 700
SWITCH_SECONDS = 0.0005  # the longest that a thread keeps the event loop's from going on
FREED_BLOCK_BYTES = 16 * 1024 * 1024

ReadConfig = Callable[[], GatewayConfig]


def run_gateway(read: ReadConfig, *, command: list[str], share: str | None = None) -> None:
    """Serve the gateway until SIGINT or SIGTERM.

    `read` gives its settings, again on SIGHUP. `command` runs another process like this one, and
    `share` is what this one has of a gateway of several.
    """
    raise_descriptor_limit()
    config = read()
    if not config.workers and config.discovery is None:
        raise ConfigError(
            "no workers: name them with --worker URL or in [[gateway.workers]], "
            "or say in [gateway.discovery] where to find them"
        )
    if config.processes > 1 and share is None:
        uvloop.run(serve_processes(read, command=command, create_admin=_admin_app))
    else:
        sys.setswitchinterval(SWITCH_SECONDS)
        be_prompt()
        mine = Share.parse(share) if share is not None else None
        uvloop.run(_Serving(read, config, mine).run())


class _Serving:
    """One gateway, its admin port, and the signals that reach them."""

    def __init__(self, read: ReadConfig, config: GatewayConfig, share: Share | None) -> None:
        self._read = read
        self._config = config
        self._share = share
        tokenizer = load_tokenizer(Path(config.tokenizer)) if config.tokenizer else None
        self._gateway = Gateway(
            config,
            policy=_policy(config.routing),
            tokenizer=tokenizer,
            build_policy=_policy,
            work=share.work(time.monotonic) if share is not None else None,
        )
        self._admin: AdminServer | None = None

    async def run(self) -> None:
        """Serve until a signal; raises GatewayFailed if the workers are no longer watched."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR1, self._gateway.reopen_logs)
        try:
            await self._start()
            _settle_memory()
            await _until(stop, self._gateway)
        finally:
            if self._admin is not None:
                await self._admin.stop()
            await self._gateway.stop()

    async def _start(self) -> None:
        config, share = self._config, self._share
        if share is not None:
            routes = [raw_traffic_route(self._gateway.dispatcher.traffic)]
            app = create_admin_app(self._gateway, routes=routes)
        else:
            operator = GatewayOperator(self._gateway)
            app = _admin_app(operator, config, lambda: self._gateway.port)
        admin = None
        if share is not None or config.admin.enabled:
            settings = AdminConfig() if share is not None else config.admin
            admin = AdminServer(app, settings, gateway_port=config.port)
        try:
            await self._gateway.start()
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from None
        if admin is not None:
            await admin.start(share.admin_socket() if share is not None else None)
        self._admin = admin

    def _reload(self) -> None:
        """SIGHUP: the settings as the file has them now, or as before if it cannot be used."""
        self._gateway.reopen_logs()
        try:
            kept = self._gateway.reconfigure(self._read())
        except ConfigError as error:
            logger.error("the settings stay as they were: %s", error)
            return
        if kept:
            logger.warning("these need a restart to change: %s", ", ".join(kept))
        logger.info("the settings were read again")


async def _until(stop: asyncio.Event, gateway: Gateway) -> None:
    """Returns at the signal; raises GatewayFailed if the background work ends before."""
    stopped = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(gateway.run())
    try:
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            error = failed.exception()
            if isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise GatewayFailed(f"the gateway's background work failed: {error!r}") from error
    finally:
        stopped.cancel()
        failed.cancel()
        await asyncio.gather(stopped, failed, return_exceptions=True)


def _admin_app(operator: Operator, config: GatewayConfig, port: Callable[[], int]) -> Starlette:
    """The admin port with its pages; `port` is the gateway's, once it listens."""

    def url() -> str:
        found = local_url(config.host, port())
        return found.replace("http", "https", 1) if config.tls is not None else found

    routes = [
        *dashboard_routes(operator, config, url=url, clock=time.monotonic),
        made_later("/api/lab/{question}", _lab_routes),
    ]
    return create_admin_app(operator, token=config.admin.token, routes=routes, pages=page_routes())


def _lab_routes() -> list[BaseRoute]:
    """What the lab's page asks; computed in processes that start with the first question."""
    # Only here, because a gateway has no use for the simulator until somebody opens the lab.
    from expediter.lab.routes import create_lab_routes

    return create_lab_routes(build_policy=build_policy)


def _policy(routing: RoutingConfig) -> RoutingPolicy:
    return build_policy(routing, clock=time.monotonic, rng=random.Random())


def _settle_memory() -> None:
    """Requests leave no reference cycles, and looking for some takes time from all of them.

    glibc gives the top of the heap back as soon as a large body is freed, and takes it again for
    the next one, page by page; not after it has freed a block that is larger.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    bytes(FREED_BLOCK_BYTES)
