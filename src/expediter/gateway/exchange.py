"""One request on one connection to a worker, and the answer as it passes through.

Bytes go from `data_received` straight into the sink. The head is kept back until the first byte
of the body, so that a worker that dies in between can still be replaced by another. Coroutines
are woken twice: at the first byte and at the end.
"""

import asyncio

from expediter.cluster.client import BodyKind, ResponseHead, ResponseSink
from expediter.errors import ClusterError, WorkerDeclined, WorkerLost
from expediter.gateway.declined import declines, may_decline
from expediter.gateway.framing import BadFraming, Body, ChunkedBody, LengthBody, UntilCloseBody
from expediter.gateway.headers import BadHead, parse_response_head

MAX_HEAD_BYTES = 256 * 1024
# Found faster than in the enum:
_LENGTH, _CHUNKED, _UNTIL_CLOSE = BodyKind.LENGTH, BodyKind.CHUNKED, BodyKind.UNTIL_CLOSE


class HttpExchange:
    """Reads one answer; the connection feeds it and asks whether it is over."""

    _buffer = b""
    _head: ResponseHead | None = None
    _body: Body | None = None
    _end: asyncio.Future[None] | None = None
    _error: ClusterError | None = None
    has_received = False
    has_started = False
    is_over = False
    is_paused = False
    keeps_connection = False

    def __init__(
        self,
        transport: asyncio.Transport,
        sink: ResponseSink,
        *,
        loop: asyncio.AbstractEventLoop,
        is_head_request: bool,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._sink = sink
        self._is_head_request = is_head_request
        self._first_byte: asyncio.Future[None] = loop.create_future()
        self.last_activity = loop.time()

    @property
    def status(self) -> int:
        """The answer's status; there is one once the first byte has come."""
        assert self._head is not None
        return self._head.status

    @property
    def is_empty(self) -> bool:
        """Whether the answer is over and there was nothing in it."""
        if not self.is_over or self._head is None:
            return False
        return self._head.length == 0 if self._body is None else self._body.is_empty

    @property
    def is_between_chunks(self) -> bool:
        """Whether a chunk may follow what the sink got."""
        return self._body is not None and self._body.is_between_chunks

    async def first_byte(self) -> None:
        """Returns when the sink is started. A caller that is cancelled gives the request up."""
        try:
            await self._first_byte
        except asyncio.CancelledError:
            self.abort()
            raise

    async def ended(self) -> None:
        """Returns when the answer is complete; raises what broke it off."""
        if not self.is_over:
            self._end = self._loop.create_future()
            try:
                await self._end
            except asyncio.CancelledError:
                self.abort()
                raise
        if self._error is not None:
            raise self._error

    def feed(self, data: bytes) -> None:
        """Some bytes from the worker."""
        self.last_activity = self._loop.time()
        try:
            if self._body is not None:
                self._pass_on(data)
            else:
                self._feed_head(data)
        except (BadHead, BadFraming) as error:
            self.fail(WorkerLost(f"the worker's answer is not valid HTTP: {error}"))
            self.abort()

    def feed_eof(self) -> None:
        """The connection is gone, which ends the answer one way or another."""
        if self.is_over:
            return
        if self._head is not None and self._head.body is _UNTIL_CLOSE:
            self._start()
            self._finish()
        else:
            self.fail(WorkerLost("the worker closed the connection before its answer was complete"))

    def fail(self, error: ClusterError) -> None:
        """End with an error; the first one counts."""
        if self.is_over:
            return
        self.is_over = True
        self._error = error
        if not self._first_byte.done():
            self._first_byte.set_exception(error)
        elif self._end is not None and not self._end.done():
            self._end.set_result(None)

    def abort(self) -> None:
        """Give the request up: the worker notices by its connection."""
        self.is_over = True
        self.keeps_connection = False
        self._transport.abort()

    def pause_reading(self) -> None:
        """Hold the worker back."""
        if not self.is_over and not self._transport.is_closing():
            self.is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Let the worker go on."""
        if self.is_paused:
            self.is_paused = False
            self.last_activity = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _feed_head(self, data: bytes) -> None:
        """Collect the head, or wait for the first byte after it."""
        self.has_received = True
        if self._head is None:
            self._buffer += data
            data = self._read_head()
        head = self._head
        if head is not None and (data or self._head_is_all()):
            if may_decline(head):
                self._feed_refusal(data, head.length)
            elif head.body is _LENGTH and head.length == len(data):
                self._pass_on_whole(head, data)
            else:
                self._start()
                self._pass_on(data)

    def _pass_on_whole(self, head: ResponseHead, data: bytes) -> None:
        """The answer is all there at once, as most are that are no streams."""
        self._sink.start(head, self)
        self.has_started = True
        if data:
            self._sink.write(data)
        self._finish()
        if not self._first_byte.done():
            self._first_byte.set_result(None)

    def _feed_refusal(self, data: bytes, length: int) -> None:
        """Collect a short 503's body, which says whether another worker may have the request."""
        self._buffer += data
        if len(self._buffer) < length:
            return
        body, self._buffer = self._buffer, b""
        if declines(body):
            self.fail(WorkerDeclined("the worker takes no requests now"))
            self.abort()
        else:
            self._start()
            self._pass_on(body)

    def _read_head(self) -> bytes:
        """Parse the head if it is there; returns what follows it."""
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, keeps = parse_response_head(
                self._buffer[:end], is_head_request=self._is_head_request
            )
            self._buffer = self._buffer[end + 4 :]
            if head.status == 101:
                raise BadHead("the worker switched protocols")
            if head.status >= 200:
                self._head, self.keeps_connection = head, keeps
                rest, self._buffer = self._buffer, b""
                return rest
        if len(self._buffer) > MAX_HEAD_BYTES:
            raise BadHead("the head is too long")
        return b""

    def _head_is_all(self) -> bool:
        assert self._head is not None
        return self._head.body is BodyKind.NONE or (
            self._head.body is _LENGTH and self._head.length == 0
        )

    def _start(self) -> None:
        """Open the sink, once."""
        if self._body is not None:
            return
        head = self._head
        assert head is not None
        wants_framing = self._sink.start(head, self)
        if head.body is _CHUNKED:
            self._body = ChunkedBody(unwraps=not wants_framing)
        elif head.body is _UNTIL_CLOSE:
            self._body = UntilCloseBody()
        else:
            self._body = LengthBody(head.length)
        self.has_started = True
        if not self._first_byte.done():
            self._first_byte.set_result(None)

    def _pass_on(self, data: bytes) -> None:
        body = self._body
        assert body is not None
        data = body.feed(data)
        if data:
            self._sink.write(data)
        if body.is_complete:
            self.keeps_connection &= not body.has_excess
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        self._sink.end()
        if self._end is not None and not self._end.done():
            self._end.set_result(None)
