"""Client connections: requests in order, one answer at a time, limits on everything.

A request is handed to the handler as an errand of its connection. When the client leaves, the
errand is cancelled, and with it whatever runs for it at a worker. While one request is answered, a
connection keeps reading, because that is how it notices; only a client that sends many requests
ahead is told to wait.
"""

import asyncio
import logging
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, cast

from expediter.cluster.errand import Errand
from expediter.config import GatewayConfig
from expediter.gateway.outbox import Outbox
from expediter.gateway.replies import error_reply, render_reply
from expediter.gateway.request import BadRequest, HttpRequest, KnownHeads
from expediter.gateway.request_reader import RequestReader
from expediter.gateway.silence import silence
from expediter.gateway.upstream import set_no_delay

logger = logging.getLogger(__name__)

MAX_PIPELINED = 16
LINGER_SECONDS = 2.0
"""How long a refused client may go on sending into the void: closing at once would reset the
connection, and the client might never see why it was refused."""

Handler = Callable[[HttpRequest, "ClientConnection"], Coroutine[Any, Any, None]]


class HttpServer:
    """Accepts connections, and closes those that stall; call `sweep` now and then."""

    def __init__(
        self, handler: Handler, config: GatewayConfig, outbox: Outbox, tls: ssl.SSLContext | None
    ) -> None:
        """`config` may be replaced while it runs; `tls` is None for plain HTTP."""
        self.handler = handler
        self.config = config
        self.outbox = outbox
        self.tls = tls
        self.connections: set[ClientConnection] = set()
        self.is_stopping = False
        self.heads = KnownHeads()
        self._listener: asyncio.Server | None = None
        self._is_changed = asyncio.Event()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen; raises OSError if the address is taken."""
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self),
            self.config.host,
            self.config.port,
            backlog=1024,
            ssl=self.tls,
            reuse_port=self.config.processes > 1,
        )

    async def stop(self) -> None:
        """Accept nothing more; let running requests finish for as long as is allowed."""
        self.is_stopping = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        await self._idle(self.config.shutdown_seconds)
        for connection in list(self.connections):
            connection.abort()
        await self._idle(None)

    def closed(self, connection: "ClientConnection") -> None:
        """A connection is gone, and so is what ran for it."""
        self.connections.discard(connection)
        self._is_changed.set()

    async def _idle(self, seconds: float | None) -> None:
        """Returns when no request runs, or at the end of the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(connection.is_busy for connection in self.connections):
                    self._is_changed.clear()
                    await self._is_changed.wait()

    def sweep(self, now: float) -> None:
        """Close connections whose client has been silent, or not reading, for too long."""
        for connection in list(self.connections):
            connection.check_silence(now)


class ClientConnection(asyncio.Protocol):
    """One client; the handler writes the answer to it."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._outbox = server.outbox
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(
            self,
            max_header_bytes=server.config.max_header_bytes,
            max_body_bytes=server.config.max_body_bytes,
            heads=server.heads,
        )
        self._pending: deque[HttpRequest | BadRequest] = deque()
        self._holds_back = False
        self._is_lost = False
        self._is_refused = False
        self._refused_at: float | None = None
        self._owes_continue = False
        self.is_quiet, self.quiet_since = False, 0.0  # see `silence.py`
        self._head_since = 0.0  # when a sweep first saw a head that is not complete
        self._stalled_since = 0.0
        self.is_writable = True  # whether the client keeps up with what is written
        self._request: HttpRequest | None = None  # the one that is answered
        self._errand = Errand(self._served)
        self.on_writable: Callable[[bool], None] | None = None  # told whether it keeps up
        self.write: Callable[[bytes], None]  # sends to the client (`outbox.py`)
        self.peer = b""

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._request is not None

    @property
    def is_encrypted(self) -> bool:
        """Whether the client speaks TLS."""
        return self._server.tls is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self.write = partial(self._outbox.write, self.transport)
        set_no_delay(transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]).encode() if peer else b"unknown"
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client left: so does everything that runs for it."""
        self._is_lost = True
        self._pending.clear()
        self._reader.abandon()
        if self._request is not None:
            self._request.keeps_alive = False
            self._errand.cancel()
        else:
            self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        """Parse, and serve what is complete."""
        self.is_quiet = False
        if self._is_refused:
            return
        try:
            self._reader.feed(data)
        except BadRequest as error:
            self._is_refused = True
            self._pending.append(error)
        if self._pending:
            if self._request is None and self._begin():
                self._errand.go()
            if len(self._pending) >= MAX_PIPELINED and not self.transport.is_closing():
                self._holds_back = True
                self.transport.pause_reading()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        self._stalled_since = self._loop.time()
        self.is_writable = False
        if self.on_writable is not None:
            self.on_writable(False)

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_writable = True
        if self.on_writable is not None:
            self.on_writable(True)

    def head_received(self, request: HttpRequest) -> None:
        """A client that asks before it sends its body may go on; but answers come in order."""
        self._owes_continue = request.version == "1.1" and request.header(b"expect") is not None
        self._send_continue()

    def request_received(self, request: HttpRequest) -> None:
        """Queue it behind those before it."""
        self._owes_continue = False
        self._head_since = 0.0
        self._pending.append(request)

    def check_silence(self, now: float) -> None:
        """Give the client up if it has kept still for longer than its state allows."""
        config, seconds = self._server.config, silence(self, now)
        if self._reader.in_head and not self._head_since:
            self._head_since = now
        if not self.is_writable:
            if now - self._stalled_since > config.idle_seconds:
                self.abort()
        elif self._request is not None:
            return
        elif self._refused_at is not None:
            if now - self._refused_at > LINGER_SECONDS:
                self._outbox.close(self.transport)
        elif self._reader.in_head and now - self._head_since > config.header_seconds:
            self._refuse(BadRequest(408, "the request's head took too long"))
        elif self._reader.in_body and seconds > config.idle_seconds:
            self._refuse(BadRequest(408, "the request's body stopped coming"))
        elif seconds > config.keep_alive_seconds:
            self._outbox.close(self.transport)

    def close_if_idle(self) -> None:
        """Close unless a request runs."""
        if self._request is None:
            self._outbox.close(self.transport)

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def reset(self) -> None:
        """Close so that the client's next read fails."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _refuse(self, error: BadRequest) -> None:
        self._is_refused = True
        self._pending.append(error)
        self._begin()

    def _send_continue(self) -> None:
        if self._owes_continue and self._request is None and not self._pending:
            self._owes_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _begin(self) -> bool:
        """Take up the next request; True if the errand is to go."""
        if self.transport.is_closing():
            return False
        request = self._pending.popleft()
        if isinstance(request, BadRequest):
            self._answer_refused(request)
            return False
        server = self._server
        if server.is_stopping:
            request.keeps_alive = False
        self._request = request
        self._errand.take(server.handler(request, self))
        return True

    def _answer_refused(self, error: BadRequest) -> None:
        reply = error_reply(error.status, str(error))
        self.write(render_reply(reply, keeps_alive=False))
        self._outbox.flush()
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
        self._refused_at = self._loop.time()

    def _served(self, error: BaseException | None) -> None:
        request = self._request
        assert request is not None
        if isinstance(error, Exception):
            logger.error("request %s failed", request.target[:200], exc_info=error)
            self.abort()
        self._request = self.on_writable = None
        request.body = b""  # the reader has the request until the next one comes
        self.is_quiet = False
        if not request.keeps_alive or self._server.is_stopping:
            self._outbox.close(self.transport)
            if self._is_lost:
                self._server.closed(self)
        elif self._pending or self._owes_continue:
            self._go_on()

    def _go_on(self) -> None:
        """What came while a request was answered has its turn, after that of others."""
        if self._holds_back and not self.transport.is_closing():
            self._holds_back = False
            self.transport.resume_reading()
        if not self._pending:
            self._send_continue()
        elif self._begin():
            self._loop.call_soon(self._errand.go)
