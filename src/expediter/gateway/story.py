"""What is known of one request at its end: what metrics count and the access log tells."""

import msgspec

from expediter.cluster.decisions import Decision
from expediter.gateway.request import HttpRequest
from expediter.routing.view import RoutedRequest

CLIENT_GONE = 499
"""The status of a request whose client left before there was one, as nginx counts it."""

ABORTED = "aborted"
"""The error of a request whose client left, or whose gateway stopped, before its answer's end."""


class Story(msgspec.Struct, eq=False, kw_only=True, gc=False):
    """Times are seconds of the gateway's clock; `sent_at` is when it was ready to be placed."""

    request: HttpRequest
    client: bytes
    arrived_at: float
    request_id: bytes = b""
    tenant_id: str | None = None
    slo_class: str | None = None
    routed: RoutedRequest = RoutedRequest(request_id="")
    sent_at: float = 0.0
    ended_at: float = 0.0
    decision: Decision | None = None
    status: int = CLIENT_GONE
    error: str | None = None
    num_bytes: int | None = None
