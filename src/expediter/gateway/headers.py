"""Heads of HTTP messages: reading a response's, and what may pass from one hop to the next."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

import msgspec

from expediter.cluster.client import BodyKind, Header, ResponseHead

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
OWN_PREFIX = b"x-expediter-"
MAX_REMEMBERED_HEADS = 64
MAX_REMEMBERED_BYTES = 2048
_BODILESS = frozenset({204, 304})


class BadHead(ValueError):
    """The bytes are not the head of an HTTP/1 response."""


def hop_by_hop(headers: Sequence[Header]) -> AbstractSet[bytes]:
    """The names that concern this hop alone: the usual ones and those that the hop itself names."""
    named: AbstractSet[bytes] = HOP_BY_HOP
    for name, value in headers:
        if name == b"connection":
            named = named | {token.strip().lower() for token in value.split(b",")}
    return named


def render(headers: Iterable[Header]) -> bytes:
    """Header lines, each with its line end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def parse_response_head(head: bytes, is_head_request: bool) -> tuple[ResponseHead, bool]:
    """The head without its empty line, and whether the connection may be kept; raises BadHead.

    A worker's heads are often the same to the byte, so short ones are remembered.
    """
    parse = _parse_known if len(head) <= MAX_REMEMBERED_BYTES else _parse
    return parse(head, is_head_request)


def _parse(head: bytes, is_head_request: bool) -> tuple[ResponseHead, bool]:
    status_line, *lines = head.split(b"\r\n")
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise BadHead("a line has no proper end")
    version, _, rest = status_line.partition(b" ")
    code, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not (len(code) == 3 and code.isdigit()):
        raise BadHead("no HTTP/1 status line")
    headers = tuple([_header(line) for line in lines])
    status = int(code)
    body, length = _body(status, headers, is_head_request=is_head_request)
    response = ResponseHead(status=status, reason=reason, headers=headers, body=body, length=length)
    connection = (response.header(b"connection") or b"").lower()
    is_kept = b"close" not in connection if version == b"HTTP/1.1" else b"keep-alive" in connection
    return response, is_kept and body is not BodyKind.UNTIL_CLOSE


_parse_known = lru_cache(MAX_REMEMBERED_HEADS)(_parse)


class ShownHead(msgspec.Struct, frozen=True):
    """What a client gets of a worker's head, and what it says: `lines` begin with the status.

    `names_length` is false where the end of the body must be told by chunks or by closing.
    """

    lines: bytes
    names_length: bool
    names_request: bool
    is_event_stream: bool


@lru_cache(MAX_REMEMBERED_HEADS)
def shown(head: ResponseHead) -> ShownHead:
    """All but the lines that are for this hop alone, or the gateway's own."""
    dropped = hop_by_hop(head.headers)
    kept = [h for h in head.headers if h[0] not in dropped and not h[0].startswith(OWN_PREFIX)]
    content_type = head.header(b"content-type") or b""
    return ShownHead(
        lines=b"HTTP/1.1 %d %b\r\n%b" % (head.status, head.reason, render(kept)),
        names_length=head.body in (BodyKind.LENGTH, BodyKind.NONE),
        names_request=head.header(b"x-request-id") is not None,
        is_event_stream=content_type.startswith(b"text/event-stream"),
    )


def _header(line: bytes) -> Header:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise BadHead("a header line is malformed")
    return name.lower(), value.strip(b" \t")


def _body(status: int, headers: Sequence[Header], *, is_head_request: bool) -> tuple[BodyKind, int]:
    """How the body is framed, by RFC 9112 section 6.3; both framings at once are refused."""
    length = coding = None
    for name, value in headers:
        if name == b"content-length" and value != length:
            if length is not None or not value.isdigit():
                raise BadHead("Content-Length is not one number")
            length = value
        elif name == b"transfer-encoding":
            if coding is not None or value.lower() != b"chunked":
                raise BadHead("the only transfer coding is chunked")
            coding = value
    if length is not None and coding is not None:
        raise BadHead("the body's framing is ambiguous")
    if is_head_request or status in _BODILESS:
        return BodyKind.NONE, 0
    if coding is not None:
        return BodyKind.CHUNKED, 0
    if length is not None:
        return BodyKind.LENGTH, int(length)
    return BodyKind.UNTIL_CLOSE, 0
