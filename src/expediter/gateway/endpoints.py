"""What the gateway answers itself: is it alive, is it ready, what it knows, what it decided."""

from collections.abc import Callable

from expediter.clock import Clock
from expediter.cluster.decisions import Decision
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Member, Membership
from expediter.gateway.metrics import GatewayMetrics
from expediter.gateway.replies import Reply, error_reply, json_reply
from expediter.gateway.request import HttpRequest
from expediter.routing.prefix_index import PrefixIndex

_Answer = Callable[[HttpRequest], Reply]

MAX_DECISIONS = 1000
DEFAULT_DECISIONS = 100


class Endpoints:
    """The gateway's own paths; GET and HEAD only."""

    def __init__(
        self, *, membership: Membership, dispatcher: Dispatcher, index: PrefixIndex, clock: Clock
    ) -> None:
        self._membership = membership
        self._dispatcher = dispatcher
        self._index = index
        self._clock = clock
        metrics = GatewayMetrics(membership=membership, dispatcher=dispatcher, index=index)
        self._paths: dict[bytes, _Answer] = {
            b"/health": lambda _: json_reply({"status": "ok"}),
            b"/ready": lambda _: self._ready(),
            b"/metrics": lambda _: metrics.reply(),
            b"/v1/models": lambda _: self._models(),
            b"/workers": lambda _: self._workers(),
            b"/decisions": self._decisions,
        }

    def reply(self, request: HttpRequest) -> Reply | None:
        """The answer, or None if the path is not one of these."""
        answer = self._paths.get(request.path)
        if answer is None:
            return None
        if request.method not in (b"GET", b"HEAD"):
            return error_reply(405, "this path is read with GET")
        return answer(request)

    def _ready(self) -> Reply:
        num_ready = len(self._membership.ready())
        body = {"ready": num_ready > 0, "num_ready_workers": num_ready}
        return json_reply(body, status=200 if num_ready else 503)

    def _models(self) -> Reply:
        """Every model once, as the first worker that serves it describes it."""
        cards: dict[str, object] = {}
        for member in reversed(self._membership.ready()):
            cards |= member.model_cards
        return json_reply({"object": "list", "data": list(cards.values())})

    def _workers(self) -> Reply:
        return json_reply([self._describe(m) for m in self._membership.members.values()])

    def _describe(self, member: Member) -> dict[str, object]:
        worker_id, work = member.worker_id, self._dispatcher.work
        return {
            "worker_id": worker_id,
            "url": member.endpoint.url,
            "status": member.status,
            "models": list(member.models),
            "kv_events": [source.events for source in member.subscribers],
            "num_requests": work.num_requests(worker_id),
            "load_tokens": work.tokens(worker_id),
            "num_blocks": self._index.num_blocks(worker_id),
            "num_assumed_blocks": self._index.num_assumed_blocks(worker_id),
        }

    def _decisions(self, request: HttpRequest) -> Reply:
        """The last decisions, newest first; `?limit=n` says how many."""
        limit = DEFAULT_DECISIONS
        query = request.target.partition(b"?")[2]
        if query:
            name, _, value = query.partition(b"=")
            if name != b"limit" or not value.isdigit():
                return error_reply(400, "the only parameter is limit, a number")
            limit = min(int(value), MAX_DECISIONS)
        recent = list(self._dispatcher.log.recent)
        newest = recent[::-1][:limit]
        return json_reply([self._decision(decision) for decision in newest])

    def _decision(self, decision: Decision) -> dict[str, object]:
        return {
            "request_id": decision.request_id,
            "age_seconds": round(self._clock() - decision.placed_at, 3),
            "worker": decision.worker_id,
            "reason": decision.reason,
            "num_tokens": decision.num_tokens,
            "matched_tokens": decision.matched_tokens,
            "cached_tokens": decision.cached_tokens,
            "scores": dict(decision.scores),
            "num_tries": decision.num_tries,
            "status": decision.status,
            "ttft_seconds": decision.ttft,
            "error": decision.error,
        }
