"""One HTTP request, and heads that are remembered.

Clients send the same head again and again, but for its length. So heads that were accepted are
remembered by their bytes, and a request with such a head is read without parsing it.
"""

import msgspec
from msgspec import structs

from expediter.cluster.client import Header

MAX_KNOWN_HEADS = 1024
_LENGTH_LINES = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")
_MAX_DIGITS = 15


class BadRequest(Exception):
    """A request that is answered with an error, after which the connection closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpRequest(msgspec.Struct, eq=False):
    """A complete request; header names are in lower case."""

    method: bytes = b""
    target: bytes = b""
    version: str = "1.1"
    headers: list[Header] = msgspec.field(default_factory=list)
    first_values: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    body: bytes = b""
    keeps_alive: bool = True
    known: "KnownHead | None" = None

    @property
    def path(self) -> bytes:
        """The target without its query."""
        target = self.target
        return target.partition(b"?")[0] if b"?" in target else target

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        return self.first_values.get(name)


class KnownHead(msgspec.Struct, eq=False):
    """A head of HTTP/1.1 that keeps the connection; a body, if any, has the length it says."""

    request: HttpRequest
    forwarded: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    """What becomes of its lines on the way to a worker, by who sent it; see `forwarded.py`."""

    def with_body(self, body: bytes) -> HttpRequest:
        """A request with this head."""
        head = self.request
        return HttpRequest(
            head.method, head.target, "1.1", head.headers, head.first_values, body, True, self
        )


class KnownHeads:
    """Heads by their bytes without the length's digits; when they are too many, all go."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}
        self.get = self._heads.get

    def remember(self, head: bytes, request: HttpRequest) -> None:
        """Remember an accepted head, unless it says more of its body than one length."""
        name, length = without_length(head)
        names = [header[0] for header in request.headers]
        if (
            not head
            or request.version != "1.1"
            or not request.keeps_alive
            or names.count(b"content-length") != (length is not None)
            or not {b"transfer-encoding", b"expect", b"upgrade"}.isdisjoint(names)
        ):
            return
        if len(self._heads) >= MAX_KNOWN_HEADS:
            self._heads.clear()
        self._heads[name] = KnownHead(structs.replace(request))  # without its body, which comes


def without_length(head: bytes) -> tuple[bytes, int | None]:
    """The head without its length's digits, and the length, if it is written as most do."""
    for line in _LENGTH_LINES:
        start = head.find(line)
        if start >= 0:
            start += len(line)
            end = head.find(b"\r", start)
            digits = head[start:] if end < 0 else head[start:end]
            if len(digits) <= _MAX_DIGITS and digits.isdigit():
                return head[:start] + head[start + len(digits) :], int(digits)
    return head, None
