"""The headers of a request on its way to a worker: whose it is, by which way it came."""

from expediter.cluster.client import Header
from expediter.gateway.headers import hop_by_hop, render
from expediter.gateway.request import HttpRequest
from expediter.gateway.server import ClientConnection

_REPLACED_HEADERS = frozenset(
    {
        b"content-length",
        b"expect",
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-request-id",
    }
)
MAX_CLIENTS = 64


def forwarded_lines(request: HttpRequest, connection: ClientConnection, request_id: bytes) -> bytes:
    """The client's end-to-end headers, and who it is, as lines; those of known heads are kept."""
    known = request.known
    if known is None or request.headers is not known.request.headers:
        lines = render(_forwarded(request, connection))
    else:
        found = known.forwarded.get(connection.peer)
        if found is None:
            found = render(_forwarded(request, connection))
            if len(known.forwarded) >= MAX_CLIENTS:
                known.forwarded.clear()
            known.forwarded[connection.peer] = found
        lines = found
    return b"".join((lines, b"x-request-id: ", request_id, b"\r\n"))


def _forwarded(request: HttpRequest, connection: ClientConnection) -> list[Header]:
    headers, came_through, host = [], [], None
    proto = b"https" if connection.is_encrypted else b"http"
    dropped = hop_by_hop(request.headers)
    for header in request.headers:
        name, value = header
        if name in dropped:
            continue
        if name not in _REPLACED_HEADERS:
            headers.append(header)
        elif name == b"x-forwarded-for":
            came_through.append(value)
        elif name == b"x-forwarded-proto":
            proto = value
        elif name == b"x-forwarded-host" or (name == b"host" and host is None):
            host = value
    headers += [
        (b"x-forwarded-for", b", ".join([*came_through, connection.peer])),
        (b"x-forwarded-proto", proto),
    ]
    if host:
        headers.append((b"x-forwarded-host", host))
    return headers
