"""Requests, read from a client's bytes.

httptools (llhttp) does the parsing and refuses what could be read in two ways: both framings at
once, repeated lengths, bare line feeds, folded headers. What it lets through and a proxy should
not is refused here. Heads that were seen before are not parsed again.
"""

from typing import Protocol

import httptools

from expediter.gateway.request import (
    END,
    MAX_DIGITS,
    BadRequest,
    HttpRequest,
    KnownHead,
    KnownHeads,
    around_length,
)

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
MAX_KNOWN_BYTES = 4096


class RequestListener(Protocol):
    """What a connection does as requests come in."""

    def head_received(self, request: HttpRequest) -> None:
        """A head is complete and acceptable; its body follows."""
        ...

    def request_received(self, request: HttpRequest) -> None:
        """A request is complete."""
        ...


class RequestReader:
    """Feeds on bytes, tells the listener of heads and requests; `feed` raises BadRequest."""

    def __init__(
        self,
        listener: RequestListener,
        *,
        max_header_bytes: int,
        max_body_bytes: int,
        heads: KnownHeads | None = None,
    ) -> None:
        """`heads` may be shared by all readers with the same limits."""
        self._listener = listener
        self._received = listener.request_received
        self._heads = heads if heads is not None else KnownHeads()
        self._raw_head = b""  # of the request that is about to be parsed
        self._num_missing = 0  # bytes of a body whose head was known
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._request = HttpRequest()
        self._known: KnownHead | None = None  # the last one
        self._usual: KnownHead | None = None  # the last one that says a length
        self._pieces: list[bytes] = []
        self._num_head_bytes = 0  # of the headers that are complete
        self._num_raw_bytes = 0  # fed since the head began
        self._num_body_bytes = 0
        self._error: BadRequest | None = None
        self.in_head = False
        self.in_body = False

    def feed(self, data: bytes) -> None:
        """Read; nothing more may be fed after BadRequest."""
        if self._num_missing:
            data = self._read_body(data)
        while data and not (self.in_head or self.in_body):
            rest = self._read_known(data)
            if rest is None:
                break
            data = rest
        if data:
            self._parse(data)

    def abandon(self) -> None:
        """Let go of a body that will never be complete; nothing more may be fed."""
        self._pieces = []

    def _read_known(self, data: bytes) -> bytes | None:
        """Read a request whose head is known; returns what follows, or None if it is not known."""
        known, start, length = self._usual, 0, 0
        if known is not None and data.startswith(known.before):  # as this client's last one
            at = known.num_before
            end = data.find(b"\r", at, at + MAX_DIGITS + 1)
            digits = data[at:end]
            if digits.isdigit() and data.startswith(known.after, end):
                length, start = int(digits), end + known.num_after
        if not start:
            known, start, length = self._look_up(data)
        if known is None or not self._request.keeps_alive:
            return None
        if length > self._max_body_bytes:
            self._check_size(length)
        stop = start + length
        if stop > len(data):
            self._known, self._num_missing = known, stop - len(data)
            self._pieces = [data[start:]] if start < len(data) else []
            self.in_body = True
            return b""
        self._received(known.with_body(data[start:stop]))
        return data[stop:]

    def _look_up(self, data: bytes) -> tuple[KnownHead | None, int, int]:
        """The head if it is known, where it ends, and the length it says."""
        end = data.find(END, 0, MAX_KNOWN_BYTES)
        self._raw_head = b""
        if end <= 0:
            return None, 0, 0
        raw = data[:end]
        before, length, after = around_length(raw)
        known = self._heads.get(before + after)
        if known is None:
            self._raw_head = raw
        elif known.before:
            self._usual = known
        return known, end + len(END), length or 0

    def _read_body(self, data: bytes) -> bytes:
        """Read on in the body of a request whose head was known; returns what follows it."""
        num_missing = self._num_missing
        self._pieces.append(data if len(data) <= num_missing else data[:num_missing])
        self._num_missing = max(0, num_missing - len(data))
        if self._num_missing:
            return b""
        assert self._known is not None
        self.in_body = False
        pieces, self._pieces = self._pieces, []
        self._received(self._known.with_body(b"".join(pieces)))
        return data[num_missing:]

    def _parse(self, data: bytes) -> None:
        began_before = self.in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request before the switch is complete; the switch itself is not made.
            self._request.keeps_alive = False
            raise BadRequest(400, "switching protocols is not supported") from None
        except httptools.HttpParserError as error:
            raise self._error or BadRequest(400, f"malformed request: {error}") from None
        if self.in_head:
            # A header that never ends is not reported, only swallowed.
            self._num_raw_bytes += len(data) if began_before else 0
            if self._num_raw_bytes > 2 * self._max_header_bytes:
                raise BadRequest(431, "the request's head is too long")

    def on_message_begin(self) -> None:
        """A request starts."""
        self._request = HttpRequest()
        self._pieces = []
        self._num_head_bytes = self._num_raw_bytes = self._num_body_bytes = 0
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        """Some of the target."""
        self._request.target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head, or a trailer, which is dropped."""
        self._count_head(len(name) + len(value) + 4)
        if self.in_head:
            name = name.lower()
            self._request.headers.append((name, value))
            self._request.first_values.setdefault(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete: see whether it is acceptable before its body comes."""
        request, parser = self._request, self._parser
        self.in_head, self.in_body = False, True
        request.method = parser.get_method()
        request.version = parser.get_http_version()
        request.keeps_alive = parser.should_keep_alive()
        try:
            self._check_head()
            self._listener.head_received(request)
        except BadRequest as error:
            self._error = error
            raise
        if self._raw_head:
            self._heads.remember(self._raw_head, request)
            self._raw_head = b""

    def on_body(self, piece: bytes) -> None:
        """Some of the body."""
        self._num_body_bytes += len(piece)
        self._check_size(self._num_body_bytes)
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self.in_body = False
        request, pieces = self._request, self._pieces
        request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._received(request)

    def _check_head(self) -> None:
        request = self._request
        if request.method not in METHODS:
            raise BadRequest(501, "method not supported")
        if request.version not in ("1.0", "1.1"):
            raise BadRequest(505, "HTTP/1.0 or HTTP/1.1 only")
        request.target = _origin_form(request.target)
        request.path = request.target.partition(b"?")[0]
        coding = request.header(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or request.version == "1.0"):
            raise BadRequest(400, "the only transfer coding is chunked, in HTTP/1.1")
        length = request.header(b"content-length")
        if length is not None:
            self._check_size(int(length))
        expectation = request.header(b"expect")
        if expectation is not None and expectation.lower() != b"100-continue":
            raise BadRequest(417, "the only expectation is 100-continue")

    def _count_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self._max_header_bytes:
            self._error = BadRequest(431, "the request's head is too long")
            raise self._error

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_body_bytes:
            self._error = BadRequest(413, f"the body is longer than {self._max_body_bytes} bytes")
            raise self._error


def _origin_form(target: bytes) -> bytes:
    """The path and query of a target; a path that climbs could leave what is forwarded."""
    if not target.startswith(b"/"):
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise BadRequest(400, "the request's target is not a path") from None
        if target == b"*":
            return target
        query = b"?" + url.query if url.query else b""
        target = (url.path or b"/") + query
    if b"/." in target and not {b".", b".."}.isdisjoint(target.partition(b"?")[0].split(b"/")):
        raise BadRequest(400, "the request's path has dot segments")
    return target
