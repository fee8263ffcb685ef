"""Recent traffic of one process of several, for its parent, which makes one trace of all.

Within a trace blocks are numbered anew, so that it tells nothing; between processes they have to
be named. This page is therefore only on the socket of the parent's.
"""

from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from expediter.cluster.traffic import TracedRequest, TrafficLog, jsonl

RAW_TRAFFIC = "/raw-traffic"


def raw_traffic_route(traffic: TrafficLog) -> Route:
    """The page; `?seconds=` as for a trace."""

    async def page(request: Request) -> Response:
        recent = traffic.recent(seconds=float(request.query_params["seconds"]))
        return Response(msgspec.msgpack.encode(recent), media_type="application/msgpack")

    return Route(RAW_TRAFFIC, page)


def merged_trace(pages: Iterable[bytes]) -> bytes:
    """Pages of several processes as one trace; they have one clock, the machine's."""
    logs = (msgspec.msgpack.decode(page, type=list[TracedRequest]) for page in pages)
    return jsonl(request for log in logs for request in log)
