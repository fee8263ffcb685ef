"""A worker behind HTTP: the OpenAI API and vLLM's extensions.

On SIGTERM or SIGINT the worker takes no more requests, lets those it has finish within a
deadline, tells the rest, and leaves.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from expediter.clock import Clock
from expediter.config import WorkerConfig
from expediter.errors import ConfigError, ExpediterError
from expediter.worker.admin import AdminEndpoints
from expediter.worker.generating import GenerationEndpoints
from expediter.worker.handover.live import LiveHandover
from expediter.worker.metrics import WorkerCollector, worker_registry
from expediter.worker.prompts import ServedModel
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.replies import error_object, failure_response, json_response
from expediter.worker.stats import ServingStats
from expediter.worker.worker import Worker

logger = logging.getLogger(__name__)

BACKLOG = 2048
KEEP_ALIVE_SECONDS = 300  # longer than gateways keep idle connections, so they close first
LAST_WORDS_SECONDS = 2  # for answers already complete to reach slow clients at shutdown


def create_app(
    worker: Worker,
    *,
    config: WorkerConfig,
    model: ServedModel,
    publisher: KVEventPublisher | None = None,
    handover: LiveHandover | None = None,
    clock: Clock = time.monotonic,
) -> Starlette:
    """The worker's HTTP API. `clock` must be the scheduler's."""
    stats, max_bytes = ServingStats(), config.max_body_bytes
    collector = WorkerCollector(
        worker,
        stats=stats,
        model_name=model.name,
        config=config,
        publisher=publisher,
        handover=handover,
    )
    generating = GenerationEndpoints(
        worker, model=model, stats=stats, clock=clock, max_body_bytes=max_bytes
    )
    admin = AdminEndpoints(
        worker,
        model=model,
        registry=worker_registry(collector),
        publisher=publisher,
        handover=handover,
        max_body_bytes=max_bytes,
    )
    return Starlette(
        routes=_routes(generating, admin),
        exception_handlers={
            ExpediterError: _on_failure,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: _on_bug,
        },
    )


def listen(config: WorkerConfig) -> socket.socket:
    """The socket that the config names, listening; ConfigError if that cannot be."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from None


async def serve(
    app: Starlette,
    *,
    listener: socket.socket,
    worker: Worker,
    publisher: KVEventPublisher | None = None,
    shutdown_seconds: float,
    stop: asyncio.Event | None = None,
) -> None:
    """Run worker and server until `stop` is set, or without one until a signal.

    Raises EngineLost, and has told all clients, if the worker loses its engine before.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LAST_WORDS_SECONDS,
        )
    )
    async with _publishing(publisher), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        tasks.create_task(server.serve(sockets=[listener]))
        logger.info("listening on %s:%d", *listener.getsockname()[:2])
        stopping = tasks.create_task(_stopped(stop))
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        logger.info("shutting down")
        await worker.drain(shutdown_seconds)
        server.should_exit = True
    if worker.failure is not None:
        raise worker.failure


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would stop taking connections, not requests."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Run until `should_exit`; listens no longer afterwards, whatever happened."""
        try:
            await super().serve(sockets)
        finally:
            for server in getattr(self, "servers", ()):
                server.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def _publishing(publisher: KVEventPublisher | None) -> AsyncIterator[None]:
    if publisher is None:
        yield
        return
    publisher.start()
    try:
        yield
    finally:
        publisher.close()


async def _stopped(stop: asyncio.Event | None) -> None:
    """Until `stop` is set, or without one until a signal comes."""
    if stop is None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
    await stop.wait()


def _routes(generating: GenerationEndpoints, admin: AdminEndpoints) -> list[Route]:
    return [
        Route("/v1/completions", generating.completions, methods=["POST"]),
        Route("/v1/chat/completions", generating.chat, methods=["POST"]),
        Route("/v1/models", admin.models),
        Route("/tokenize", admin.tokenize, methods=["POST"]),
        Route("/detokenize", admin.detokenize, methods=["POST"]),
        Route("/health", admin.health),
        Route("/metrics", admin.metrics),
        Route("/load", admin.load),
        Route("/version", admin.version),
        Route("/kv_event_sources", admin.kv_event_sources),
        Route("/kv_transfer_source", admin.kv_transfer_source),
        Route("/reset_prefix_cache", admin.reset_prefix_cache, methods=["POST"]),
    ]


async def _on_failure(_: Request, error: Exception) -> Response:
    assert isinstance(error, ExpediterError)
    return failure_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    body = error_object(message, kind="invalid_request_error", code=error.status_code)
    response = json_response(body, status=error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _on_disconnect(_: Request, __: Exception) -> Response:
    """The client left while it sent its body; nobody reads this."""
    return Response(status_code=400)


async def _on_bug(_: Request, __: Exception) -> Response:
    body = error_object("internal error", kind="internal_error", code=ExpediterError.status)
    return json_response(body, status=ExpediterError.status)
