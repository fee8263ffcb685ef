"""One request on one connection to a worker, and the answer as it passes through.

Bytes go from `data_received` straight into the sink. The head is kept back until the first byte
of the body, so that a worker that dies in between can still be replaced by another. Whoever waits
goes on twice, at the first byte and at the end; once, if the answer comes in one piece.
"""

import asyncio

from expediter.cluster.client import BodyKind, ResponseHead, ResponseSink
from expediter.cluster.errand import Pause
from expediter.errors import ClusterError, WorkerDeclined, WorkerLost
from expediter.gateway.declined import declines, may_decline
from expediter.gateway.framing import BadFraming, Body, ChunkedBody, LengthBody, UntilCloseBody
from expediter.gateway.headers import BadHead, parse_response_head

MAX_HEAD_BYTES = 256 * 1024
# Found faster than in the enum:
_LENGTH, _CHUNKED, _UNTIL_CLOSE = BodyKind.LENGTH, BodyKind.CHUNKED, BodyKind.UNTIL_CLOSE


class HttpExchange(Pause):
    """Reads one answer. The connection feeds it, and ends the pause when there is `has_news`."""

    __slots__ = (
        "_body",
        "_buffer",
        "_error",
        "_head",
        "_is_head_request",
        "_sink",
        "_transport",
        "has_news",
        "has_received",
        "has_started",
        "is_complete",
        "is_over",
        "is_paused",
        "is_quiet",
        "keeps_connection",
        "quiet_since",
        "status",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        sink: ResponseSink,
        is_head_request: bool,
    ) -> None:
        """By position: Python calls that twice as fast here."""
        self.resume = None
        self._transport = transport
        self._sink = sink
        self._is_head_request = is_head_request
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._body: Body | None = None
        self._error: ClusterError | None = None
        self.is_quiet, self.quiet_since = False, 0.0  # see `silence.py`
        self.status = 0  # the answer's, once the first byte has come
        self.has_received = False
        self.has_started = False
        self.has_news = False  # the first byte has come
        self.is_over = False
        self.is_complete = False  # and not broken off
        self.is_paused = False
        self.keeps_connection = False

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

    async def ended(self) -> None:
        """Returns when the answer is complete; raises what broke it off."""
        if not self.is_over:
            await self
        self.check()

    def check(self) -> None:
        """Raises what broke it off, if anything did."""
        if self._error is not None:
            raise self._error

    @property
    def was_stale(self) -> bool:
        """Whether the worker had closed the connection before it saw the request."""
        return isinstance(self._error, WorkerLost) and not self.has_received

    def feed(self, data: bytes) -> None:
        """Some bytes from the worker."""
        self.is_quiet = False
        body = self._body
        try:
            if body is None:
                self.has_received = True
                self._feed_head(data)
            else:
                data = body.feed(data)
                if data:
                    self._sink.write(data)
                if body.is_complete:
                    self._finish()
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

    def abort(self) -> None:
        """Give the request up: the worker notices by its connection."""
        if self.is_complete:
            return  # the connection is free already, and may serve another
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
            self.is_paused = self.is_quiet = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _feed_head(self, data: bytes) -> None:
        """Collect the head, or wait for the first byte after it."""
        head = self._head
        if head is None:
            data = self._read_head(self._buffer + data if self._buffer else data)
            head = self._head
            if head is None:
                return
        if head.status == 503 and may_decline(head):
            if data:
                self._feed_refusal(data, head.length)
        elif head.body is _LENGTH and head.length == len(data):
            # All there at once, as most answers are that are no streams.
            sink = self._sink
            sink.start(head, self)
            self.has_started = self.is_over = self.is_complete = True
            if data:
                sink.write(data)
            sink.end()
        elif data or head.body is BodyKind.NONE:
            self._start()
            self.feed(data)

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
            self.feed(body)

    def _read_head(self, data: bytes) -> bytes:
        """Parse the head if it is there; returns what follows it."""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head, keeps = parse_response_head(data[:end], self._is_head_request)
            data = data[end + 4 :]
            status = head.status
            if status >= 200:
                self._head, self.status, self.keeps_connection = head, status, keeps
                self._buffer = b""
                return data
            if status == 101:
                raise BadHead("the worker switched protocols")
        self._buffer = data
        if len(data) > MAX_HEAD_BYTES:
            raise BadHead("the head is too long")
        return b""

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
        self.has_started = self.has_news = True

    def _finish(self) -> None:
        body = self._body
        assert body is not None
        if body.has_excess:
            self.keeps_connection = False
        self.is_over = self.is_complete = True
        self._sink.end()
