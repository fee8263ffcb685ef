"""One HTTP request, and heads that are remembered.

Clients send the same head again and again, but for its length. So heads that were accepted are
remembered by their bytes, and a request with such a head is read without parsing it.
"""

import msgspec
from msgspec import structs

from expediter.cluster.client import Header

MAX_KNOWN_HEADS = 1024
_LENGTH_LINES = (b"\r\ncontent-length: ", b"\r\nContent-Length: ")
MAX_DIGITS = 15
END = b"\r\n\r\n"


class BadRequest(Exception):
    """A request that is answered with an error, after which the connection closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpRequest(msgspec.Struct, eq=False, gc=False):
    """A complete request; header names are in lower case."""

    method: bytes = b""
    target: bytes = b""
    version: str = "1.1"
    headers: list[Header] = msgspec.field(default_factory=list)
    first_values: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    body: bytes = b""
    keeps_alive: bool = True
    known: "KnownHead | None" = None
    path: bytes = b""  # the target without its query

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        return self.first_values.get(name)


class KnownHead(msgspec.Struct, eq=False):
    """A head of HTTP/1.1 that keeps the connection; a body, if any, has the length it says.

    `before` and `after` are its bytes around the length's digits, if it has a length, and
    `num_before` and `num_after` how many these are.
    """

    request: HttpRequest
    before: bytes = b""
    after: bytes = b""
    num_before: int = 0
    num_after: int = 0
    forwarded: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    """What becomes of its lines on the way to a worker, by who sent it; see `forwarded.py`."""

    def with_body(self, body: bytes) -> HttpRequest:
        """A request with this head."""
        head = self.request
        return HttpRequest(
            head.method,
            head.target,
            "1.1",
            head.headers,
            head.first_values,
            body,
            True,
            self,
            head.path,
        )


class KnownHeads:
    """Heads by their bytes without the length's digits; when they are too many, all go."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}
        self.get = self._heads.get

    def remember(self, head: bytes, request: HttpRequest) -> None:
        """Remember an accepted head, unless it says more of its body than one length."""
        before, length, after = around_length(head)
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
        head = before + after
        known = KnownHead(structs.replace(request))  # without its body, which comes
        if length is not None:
            known.before, known.after = before, after + END
            known.num_before, known.num_after = len(before), len(after + END)
        self._heads[head] = known


def around_length(head: bytes) -> tuple[bytes, int | None, bytes]:
    """A head's length, if it is written as most do, and what is before and after its digits."""
    for line in _LENGTH_LINES:
        start = head.find(line)
        if start >= 0:
            start += len(line)
            end = head.find(b"\r", start)
            digits = head[start:] if end < 0 else head[start:end]
            if len(digits) <= MAX_DIGITS and digits.isdigit():
                return head[:start], int(digits), head[start + len(digits) :]
    return head, None, b""
