"""Chats from the playground, sent on to the gateway's public port like any client's.

The page may only talk to where it came from, so the admin port passes its chats on over loopback.
They go through the front door: limits, placement and headers are what every client gets. Where
tenants share the gateway, the page sends a tenant's key along; the admin token stays here.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from expediter.cluster.client import (
    BodyKind,
    Exchange,
    ForwardedRequest,
    Inflow,
    ResponseHead,
    Usage,
)
from expediter.cluster.decisions import Decision
from expediter.config import GatewayConfig, WorkerEndpoint
from expediter.errors import ClusterError
from expediter.gateway.upstream import HttpWorker

API_KEY = "x-api-key"
PASSED_ON = ("content-type", "retry-after", "x-request-id", "x-expediter-worker")
PASSED_PREFIX = "x-expediter-"
MAX_BODY_BYTES = 1024 * 1024
MAX_PIECES = 64
"""What has arrived and the page has not taken yet; then the gateway is held back."""


def playground_routes(config: GatewayConfig, *, url: Callable[[], str]) -> list[BaseRoute]:
    """/playground/chat and /playground/models; `url` is the public port's, once it listens."""
    playground = _Playground(config, url)
    return [
        Route("/playground/chat", playground.chat, methods=["POST"]),
        Route("/playground/models", playground.models),
    ]


class _Playground:
    def __init__(self, config: GatewayConfig, url: Callable[[], str]) -> None:
        self._config = config
        self._url = url

    async def chat(self, request: Request) -> Response:
        """A chat completion, streamed or not, with the gateway's headers."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise HTTPException(413, "the body is too long")
        forwarded = ForwardedRequest(
            method=b"POST",
            target=b"/v1/chat/completions",
            lines=_lines(request),
            body=bytes(body),
        )
        return await self._passed_on(forwarded)

    async def models(self, request: Request) -> Response:
        """The models that the key may use."""
        forwarded = ForwardedRequest(method=b"GET", target=b"/v1/models", lines=_lines(request))
        return await self._passed_on(forwarded)

    async def _passed_on(self, forwarded: ForwardedRequest) -> Response:
        url = self._url()
        # The certificate is this gateway's own and names its host, not loopback.
        tls = ssl._create_unverified_context() if url.startswith("https") else None
        front = HttpWorker(WorkerEndpoint(url=url), self._config, tls=tls)
        sink = _Pieces()
        try:
            exchange = await front.send(forwarded, sink)
        except ClusterError as error:
            front.close()
            raise HTTPException(502, f"the gateway's own port did not answer: {error}") from None
        except BaseException:
            front.close()
            raise
        assert sink.head is not None
        return StreamingResponse(
            _body(front, exchange, sink),
            status_code=sink.head.status,
            headers=_headers(sink.head),
        )


class _Pieces:
    """A sink that hands the body on piece by piece; None is its end."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._inflow: Inflow | None = None
        self._is_paused = False

    def placed(self, decision: Decision) -> None:
        """The gateway chooses, not this page."""

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:
        """Contents only, please."""
        self.head, self._inflow = head, inflow
        if head.body is BodyKind.NONE:
            self.end()
        return False

    def write(self, data: bytes) -> None:
        """Keep it until it is asked for."""
        self._pieces.put_nowait(data)
        if self._pieces.qsize() >= MAX_PIECES and self._inflow is not None:
            self._is_paused = True
            self._inflow.pause_reading()

    def end(self) -> None:
        """Nothing comes after this."""
        self._pieces.put_nowait(None)
        self._inflow = None

    def usage(self) -> Usage | None:
        """The page reads it itself."""
        return None

    async def next(self) -> bytes | None:
        """The next piece, when it is there."""
        piece = await self._pieces.get()
        if self._is_paused and self._pieces.empty() and self._inflow is not None:
            self._is_paused = False
            self._inflow.resume_reading()
        return piece


async def _body(front: HttpWorker, exchange: Exchange, sink: _Pieces) -> AsyncIterator[bytes]:
    """The answer as it comes; a page that leaves gives the request up."""
    ended = asyncio.ensure_future(exchange.ended())
    ended.add_done_callback(lambda _: sink.end())
    try:
        while (piece := await sink.next()) is not None:
            yield piece
        await ended
    finally:
        ended.cancel()
        front.close()


def _lines(request: Request) -> bytes:
    key = request.headers.get(API_KEY, "")
    lines = b"content-type: application/json\r\n"
    return lines + (b"authorization: Bearer %b\r\n" % key.encode("latin-1") if key else b"")


def _headers(head: ResponseHead) -> dict[str, str]:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return {
        name: value
        for name, value in headers.items()
        if name in PASSED_ON or name.startswith(PASSED_PREFIX)
    }
