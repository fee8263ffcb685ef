"""The admin port: what the operator sees and does, apart from what clients reach.

Without a token it listens on loopback only. Who is let in, `door.py` decides.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence

import msgspec
import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from expediter.config import AdminConfig
from expediter.errors import ConfigError, RequestError
from expediter.gateway.door import Door, is_loopback, refusal
from expediter.gateway.gateway import Gateway
from expediter.gateway.operator import GatewayOperator, Operator
from expediter.gateway.reports import DEFAULT_DECISIONS, MAX_DECISIONS

logger = logging.getLogger(__name__)

PORT_DISTANCE = 1000
MAX_BODY_BYTES = 1024 * 1024
GRACE_SECONDS = 1
TRACE_SECONDS = 600
MAX_DIGITS = 9


def create_admin_app(
    operated: Gateway | Operator,
    *,
    token: str | None = None,
    routes: Sequence[BaseRoute] = (),
    pages: Sequence[BaseRoute] = (),
) -> Starlette:
    """The admin port's application.

    `routes` are more of it, behind the same door; `pages` need no token, so nothing of the fleet
    may be in them. `app.state.closing` is set when the port closes.
    """
    operator = GatewayOperator(operated) if isinstance(operated, Gateway) else operated
    paths = _Paths(operator)
    app = Starlette(
        routes=[
            *pages,
            Route("/health", paths.health),
            Route("/ready", paths.ready),
            Route("/metrics", paths.metrics),
            Route("/stats", paths.stats),
            Route("/config", paths.config),
            Route("/decisions", paths.decisions),
            Route("/activity", paths.activity),
            Route("/trace", paths.trace),
            Route("/workers", paths.workers, methods=["GET"]),
            Route("/workers", paths.add_worker, methods=["POST"]),
            Route("/workers/{worker_id:path}/drain", paths.drain, methods=["POST"]),
            Route("/workers/{worker_id:path}/undrain", paths.undrain, methods=["POST"]),
            Route("/workers/{worker_id:path}", paths.remove_worker, methods=["DELETE"]),
            Route("/policy", paths.use_policy, methods=["POST"]),
            *routes,
        ],
        middleware=[Middleware(Door, token=token, pages=pages)],
        exception_handlers={RequestError: _on_refusal, HTTPException: _on_http_error},
    )
    app.state.closing = asyncio.Event()
    return app


class _Paths:
    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def health(self, _: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        readiness = await self._operator.readiness()
        return _json(readiness, status=200 if readiness["ready"] else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(await self._operator.metrics(), media_type=CONTENT_TYPE_LATEST)

    async def stats(self, _: Request) -> Response:
        return _json(await self._operator.stats())

    async def config(self, _: Request) -> Response:
        return _json(await self._operator.config())

    async def decisions(self, request: Request) -> Response:
        limit = _number(request, "limit", DEFAULT_DECISIONS)
        return _json(await self._operator.decisions(min(limit, MAX_DECISIONS)))

    async def trace(self, request: Request) -> Response:
        lines = await self._operator.trace(_number(request, "seconds", TRACE_SECONDS))
        return Response(lines, media_type="application/jsonl")

    async def activity(self, _: Request) -> Response:
        return _json(await self._operator.activity())

    async def workers(self, _: Request) -> Response:
        return _json(await self._operator.workers())

    async def add_worker(self, request: Request) -> Response:
        return _json(await self._operator.add_worker(await _body(request)), status=201)

    async def remove_worker(self, request: Request) -> Response:
        removed = await self._operator.remove_worker(request.path_params["worker_id"])
        return _json(removed, status=202)

    async def drain(self, request: Request) -> Response:
        worker_id = request.path_params["worker_id"]
        return _json(await self._operator.drain(worker_id, drains=True))

    async def undrain(self, request: Request) -> Response:
        worker_id = request.path_params["worker_id"]
        return _json(await self._operator.drain(worker_id, drains=False))

    async def use_policy(self, request: Request) -> Response:
        return _json(await self._operator.use_policy(await _body(request)))


class AdminServer:
    """Serves the application from `start` to `stop`, on the running event loop."""

    def __init__(self, app: Starlette, config: AdminConfig, *, gateway_port: int) -> None:
        """Raises ConfigError if everybody could come in."""
        if config.token is None and not is_loopback(config.host):
            raise ConfigError(
                f"gateway.admin: {config.host} can be reached from elsewhere, so a token is "
                "needed; without one, host must be a loopback address"
            )
        self._app = app
        self._config = config
        self._gateway_port = gateway_port
        self._task: asyncio.Task[None] | None = None
        self._server: _Server | None = None
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self, listener: socket.socket | None = None) -> None:
        """Listen, or take what listens already.

        Raises ConfigError if the address that was asked for is taken.
        """
        self._socket = listener or self._listen()
        if listener is None:
            logger.info("the admin port is http://%s:%d", self._config.host, self.port)
        self._server = _Server(
            uvicorn.Config(
                self._app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Close; answers under way get a moment."""
        self._app.state.closing.set()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        if self._socket is not None:
            self._socket.close()

    def _listen(self) -> socket.socket:
        config = self._config
        if config.port is not None:
            try:
                return _bound(config.host, config.port)
            except OSError as error:
                reason = error.strerror or error
                raise ConfigError(
                    f"gateway.admin: cannot listen on {config.host}:{config.port}: {reason}"
                ) from None
        port = self._gateway_port + PORT_DISTANCE
        try:
            return _bound(config.host, port if port <= 65535 else 0)
        except OSError:
            return _bound(config.host, 0)


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def _number(request: Request, name: str, default: int) -> int:
    """A parameter of the query; raises RequestError if it is no whole number."""
    given = request.query_params.get(name, str(default))
    if not (given.isascii() and given.isdecimal() and len(given) <= MAX_DIGITS):
        raise RequestError(f"{name} must be a number", param=name)
    return int(given)


async def _body(request: Request) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise HTTPException(413, "the body is too long")
    return bytes(data)


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _on_refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refusal(error.status, str(error), kind=error.kind)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, error.detail)
