"""Client connections: requests in order, one answer at a time, limits on everything.

A request is handed to the handler as a task of its connection. When the client leaves, the task
is cancelled, and with it whatever runs for it at a worker. While one request is answered, a
connection keeps reading, because that is how it notices; only a client that sends many requests
ahead is told to wait.
"""

import asyncio
import logging
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

from expediter.config import GatewayConfig
from expediter.gateway.replies import error_reply, render_reply
from expediter.gateway.request import BadRequest, HttpRequest, KnownHeads
from expediter.gateway.request_reader import RequestReader
from expediter.gateway.upstream import set_no_delay

logger = logging.getLogger(__name__)

MAX_PIPELINED = 16
LINGER_SECONDS = 2.0
"""How long a refused client may go on sending into the void: closing at once would reset the
connection, and the client might never see why it was refused."""

Handler = Callable[[HttpRequest, "ClientConnection"], Awaitable[None]]


class HttpServer:
    """Accepts connections, and closes those that stall; call `sweep` now and then."""

    def __init__(
        self, handler: Handler, config: GatewayConfig, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """`config` may be replaced while it runs; `tls` is None for plain HTTP."""
        self.handler = handler
        self.config = config
        self.tls = tls
        self.connections: set[ClientConnection] = set()
        self.is_stopping = False
        self.heads = KnownHeads()
        self._listener: asyncio.Server | None = None

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
        tasks = [c.task for c in self.connections if c.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self.config.shutdown_seconds)
        leftover = [c.task for c in self.connections if c.task is not None]
        for connection in list(self.connections):
            connection.abort()
        if leftover:
            await asyncio.wait(leftover)

    def sweep(self, now: float) -> None:
        """Close connections whose client has been silent, or not reading, for too long."""
        for connection in list(self.connections):
            connection.check_silence(now)


class ClientConnection(asyncio.Protocol):
    """One client; the handler writes the answer to it."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(
            self,
            max_header_bytes=server.config.max_header_bytes,
            max_body_bytes=server.config.max_body_bytes,
            heads=server.heads,
        )
        self._pending: deque[HttpRequest | BadRequest] = deque()
        self._holds_back = False
        self._is_refused = False
        self._refused_at: float | None = None
        self._owes_continue = False
        self._last_read = self._head_began = self._loop.time()
        self._stalled_since: float | None = None
        self._on_writable: Callable[[bool], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.peer = b""

    @property
    def is_writable(self) -> bool:
        """Whether the client keeps up with what is written."""
        return self._stalled_since is None

    @property
    def is_encrypted(self) -> bool:
        """Whether the client speaks TLS."""
        return self._server.tls is not None

    def write(self, data: bytes) -> None:
        """Send to the client, unless it has just left: then nobody would read it."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def watch_writable(self, listener: Callable[[bool], None] | None) -> None:
        """Tell `listener` when the client stops keeping up, and when it does again."""
        self._on_writable = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        set_no_delay(transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]).encode() if peer else b"unknown"
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client left: so does everything that runs for it."""
        self._server.connections.discard(self)
        self._pending.clear()
        self._reader.abandon()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse, and serve what is complete."""
        self._last_read = self._loop.time()
        if self._is_refused:
            return
        if not self._reader.in_head:
            self._head_began = self._last_read
        try:
            self._reader.feed(data)
        except BadRequest as error:
            self._is_refused = True
            self._pending.append(error)
        self._advance()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        self._stalled_since = self._loop.time()
        if self._on_writable is not None:
            self._on_writable(False)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._stalled_since = None
        if self._on_writable is not None:
            self._on_writable(True)

    def head_received(self, request: HttpRequest) -> None:
        """A client that asks before it sends its body may go on; but answers come in order."""
        self._owes_continue = request.version == "1.1" and request.header(b"expect") is not None
        self._send_continue()

    def request_received(self, request: HttpRequest) -> None:
        """Queue it behind those before it."""
        self._owes_continue = False
        self._pending.append(request)

    def check_silence(self, now: float) -> None:
        """Give the client up if it has kept still for longer than its state allows."""
        config = self._server.config
        silence = now - self._last_read
        if self._stalled_since is not None:
            if now - self._stalled_since > config.idle_seconds:
                self.abort()
        elif self.task is not None:
            return
        elif self._refused_at is not None:
            if now - self._refused_at > LINGER_SECONDS:
                self.transport.close()
        elif self._reader.in_head and now - self._head_began > config.header_seconds:
            self._refuse(BadRequest(408, "the request's head took too long"))
        elif self._reader.in_body and silence > config.idle_seconds:
            self._refuse(BadRequest(408, "the request's body stopped coming"))
        elif silence > config.keep_alive_seconds:
            self.transport.close()

    def close_if_idle(self) -> None:
        """Close unless a request runs."""
        if self.task is None:
            self.transport.close()

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
        self._advance()

    def _send_continue(self) -> None:
        if self._owes_continue and self.task is None and not self._pending:
            self._owes_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _advance(self) -> None:
        """Start the next request if none runs."""
        if self.task is None and self._pending and not self.transport.is_closing():
            request = self._pending.popleft()
            if isinstance(request, BadRequest):
                self._answer_refused(request)
                return
            if self._server.is_stopping:
                request.keeps_alive = False
            self.task = self._loop.create_task(self._serve(request))
        if len(self._pending) >= MAX_PIPELINED and not self.transport.is_closing():
            self._holds_back = True
            self.transport.pause_reading()

    def _answer_refused(self, error: BadRequest) -> None:
        reply = error_reply(error.status, str(error))
        self.write(render_reply(reply, keeps_alive=False))
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
        self._refused_at = self._loop.time()

    async def _serve(self, request: HttpRequest) -> None:
        try:
            await self._server.handler(request, self)
        except Exception:
            logger.exception("request %s failed", request.target[:200])
            self.abort()
        finally:
            self._served(request)

    def _served(self, request: HttpRequest) -> None:
        self.task = None
        request.body = b""  # the reader has the request until the next one comes
        self._last_read = self._loop.time()
        self._on_writable = None
        if not request.keeps_alive or self._server.is_stopping:
            self.transport.close()
        elif not self.transport.is_closing():
            if self._holds_back:
                self._holds_back = False
                self.transport.resume_reading()
            self._advance()
            self._send_continue()
