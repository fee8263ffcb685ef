"""A worker over HTTP: pooled connections, and the request that goes down one of them."""

import asyncio
import errno
import socket
import ssl
from typing import cast
from urllib.parse import urlsplit

from expediter.cluster.client import ForwardedRequest, Inflow, ResponseHead, ResponseSink, Usage
from expediter.cluster.decisions import Decision
from expediter.cluster.errand import in_task
from expediter.config import GatewayConfig, WorkerEndpoint
from expediter.errors import WorkerLost, WorkerRefused, WorkerSilent, WorkerUnavailable
from expediter.gateway.exchange import HttpExchange
from expediter.gateway.outbox import Outbox
from expediter.gateway.silence import silence

MAX_IDLE_CONNECTIONS = 1024
# Descriptors, ports or memory have run out here, which says nothing against the worker:
_OWN_FAULTS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
COPIED_BYTES = 16 * 1024
"""A body of so many bytes goes out in one piece with its head: copying costs less than two."""
_BODILESS_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class HttpWorker:
    """The worker behind one URL. Call `sweep` now and then: that is what enforces time-outs."""

    def __init__(
        self,
        endpoint: WorkerEndpoint,
        config: GatewayConfig,
        *,
        tls: ssl.SSLContext | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`config` may be replaced; `tls` is for https, by default the system's trust.

        `outbox` may be shared by all connections of one event loop.
        """
        url = urlsplit(endpoint.url)
        self._host = url.hostname or "127.0.0.1"
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if url.scheme == "https" else None
        self._base_path = url.path.rstrip("/").encode()
        authority = url.netloc.rpartition("@")[2].encode()
        self._after_target = b" HTTP/1.1\r\nhost: %b\r\n" % authority
        self.config = config
        self.outbox = outbox or Outbox()
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()

    @property
    def num_connections(self) -> int:
        """Open connections, busy and idle."""
        return len(self._all)

    async def send(self, request: ForwardedRequest, sink: ResponseSink) -> HttpExchange:
        """See WorkerClient. A stale pooled connection is replaced by a new one, once."""
        connection = self._take_idle()
        if connection is not None:
            exchange = connection.start(request, sink)
            await exchange
            if exchange.has_started:
                return exchange
            if not exchange.was_stale:
                exchange.check()
        connection = await in_task(self._connect(), unwanted=self.release)
        if connection.transport.is_closing():
            raise WorkerLost("the worker closed a new connection at once")
        exchange = connection.start(request, sink)
        await exchange
        if not exchange.has_started:
            exchange.check()
        return exchange

    async def fetch(self, path: str, *, timeout: float) -> tuple[int, bytes]:  # noqa: ASYNC109
        """See WorkerClient."""
        sink = _Collector()
        request = ForwardedRequest(method=b"GET", target=path.encode())
        try:
            async with asyncio.timeout(timeout):
                exchange = await self.send(request, sink)
                await exchange.ended()
        except TimeoutError:
            raise WorkerSilent(f"no answer to {path} in {timeout:g} s") from None
        return exchange.status, b"".join(sink.pieces)

    def sweep(self, now: float) -> None:
        """End exchanges whose worker has been silent for too long, as their connections close."""
        for connection in [c for c in self._all if c.exchange is not None]:
            exchange = connection.exchange
            if exchange is None or exchange.is_paused:
                continue
            config = self.config
            limit = config.idle_seconds if exchange.has_started else config.first_byte_seconds
            if silence(exchange, now) > limit:
                exchange.fail(WorkerSilent(f"the worker has been silent for {limit:g} s"))
                exchange.abort()

    def close(self) -> None:
        """Drop every connection."""
        for connection in list(self._all):
            connection.abort()

    def release(self, connection: "UpstreamConnection") -> None:
        """An exchange is over and its connection can take another."""
        if len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: "UpstreamConnection") -> None:
        """A connection is gone."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _take_idle(self) -> "UpstreamConnection | None":
        # The one used last is the least likely to have been closed by the worker.
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> "UpstreamConnection":
        loop = asyncio.get_running_loop()
        seconds = self.config.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise WorkerRefused(f"no connection in {seconds:g} s") from None
        except OSError as error:
            if error.errno in _OWN_FAULTS:
                raise WorkerUnavailable(f"no more connections can be made: {error}") from error
            raise WorkerRefused(f"no connection: {error}") from error
        self._all.add(connection)
        return connection

    def write(self, transport: asyncio.Transport, request: ForwardedRequest) -> None:
        """Send a request on one of the connections."""
        method, body = request.method, request.body
        has_length = body or method not in _BODILESS_METHODS
        end = b"content-length: %d\r\n\r\n" % len(body) if has_length else b"\r\n"
        path, rest, lines = self._base_path, self._after_target, request.lines
        is_copied = len(body) <= COPIED_BYTES
        copied = body if is_copied else b""
        piece = b"".join((method, b" ", path, request.target, rest, lines, end, copied))
        if is_copied:
            self.outbox.write(transport, piece)
        else:
            transport.writelines((piece, body))


class UpstreamConnection(asyncio.Protocol):
    """One connection to a worker; it serves one exchange at a time."""

    transport: asyncio.Transport

    def __init__(self, worker: HttpWorker) -> None:
        self._worker = worker
        self.exchange: HttpExchange | None = None

    def start(self, request: ForwardedRequest, sink: ResponseSink) -> HttpExchange:
        """Send a request; the answer goes to the sink."""
        transport = self.transport
        exchange = HttpExchange(transport, sink, request.method == b"HEAD")
        self.exchange = exchange
        self._worker.write(transport, request)
        return exchange

    def abort(self) -> None:
        """Close at once; a running exchange fails."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The worker accepted."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        set_no_delay(transport)

    def data_received(self, data: bytes) -> None:
        """Feed the exchange; once it is over the connection goes back to the pool."""
        exchange = self.exchange
        if exchange is None:
            self.abort()  # a worker that speaks unasked is out of step
            return
        exchange.feed(data)
        if exchange.is_over:
            self.exchange = None
            if exchange.keeps_connection:
                if exchange.is_paused:
                    exchange.resume_reading()
                self._worker.release(self)
            else:
                self.abort()
            exchange.end()
        elif exchange.has_news:
            exchange.has_news = False
            exchange.end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The worker hung up, or this side did."""
        self._worker.forget(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.feed_eof()
            exchange.end()


class _Collector:
    """A sink that keeps the body."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def placed(self, decision: Decision) -> None:
        """Nobody chose."""

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:  # noqa: ARG002
        """Contents only, please."""
        return False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.pieces.append(data)

    def end(self) -> None:
        """Nothing left to do."""

    def usage(self) -> Usage | None:
        """Nobody asks."""
        return None


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Small writes go out at once: a token must not wait for the next one's acknowledgement."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
