"""What the gateway answers itself: is it alive, is it ready, what it knows, what it decided.

Where tenants share a gateway, what one may learn of another's requests is for the operator alone;
and where several processes share a port, each would tell of itself only. In both cases the
operator's paths are on the admin port and not here.
"""

from collections.abc import Callable
from dataclasses import replace

from expediter.gateway.metrics import GatewayMetrics
from expediter.gateway.replies import Reply, error_reply, json_reply
from expediter.gateway.reports import DEFAULT_DECISIONS, MAX_DECISIONS, Reports
from expediter.gateway.request import HttpRequest

_Answer = Callable[[HttpRequest], Reply]
_ALLOWED = ((b"allow", b"GET, HEAD, OPTIONS"),)


class Endpoints:
    """The gateway's own paths; GET and HEAD only."""

    def __init__(self, reports: Reports, metrics: GatewayMetrics) -> None:
        self._reports = reports
        self._everybodys: dict[bytes, _Answer] = {
            b"/health": lambda _: json_reply({"status": "ok"}),
            b"/ready": lambda _: self._ready(),
            b"/v1/models": lambda _: json_reply(reports.models()),
        }
        self._operators: dict[bytes, _Answer] = {
            b"/metrics": lambda _: metrics.reply(),
            b"/workers": lambda _: json_reply(reports.workers()),
            b"/decisions": self._decisions,
        }
        self._paths = self._everybodys
        self.show_all(True)

    def show_all(self, shows: bool) -> None:
        """Whether the operator's paths are answered here too."""
        operators = self._operators if shows else dict.fromkeys(self._operators, _elsewhere)
        self._paths = self._everybodys | operators

    def has(self, path: bytes) -> bool:
        """Whether the path is one of these."""
        return path in self._paths

    def reply(self, request: HttpRequest) -> Reply | None:
        """The answer, or None if the path is not one of these."""
        answer = self._paths.get(request.path)
        if answer is None:
            return None
        if request.method == b"OPTIONS":
            return Reply(headers=_ALLOWED)
        if request.method not in (b"GET", b"HEAD"):
            return replace(error_reply(405, "this path is read with GET"), headers=_ALLOWED)
        return answer(request)

    def _ready(self) -> Reply:
        readiness = self._reports.readiness()
        return json_reply(readiness, status=200 if readiness["ready"] else 503)

    def _decisions(self, request: HttpRequest) -> Reply:
        """The last decisions, newest first; `?limit=n` says how many."""
        limit = DEFAULT_DECISIONS
        query = request.target.partition(b"?")[2]
        if query:
            name, _, value = query.partition(b"=")
            if name != b"limit" or not value.isdigit():
                return error_reply(400, "the only parameter is limit, a number")
            limit = min(int(value), MAX_DECISIONS)
        return json_reply(self._reports.decisions(limit))


def _elsewhere(_: HttpRequest) -> Reply:
    return error_reply(404, "this path is on the admin port only")
