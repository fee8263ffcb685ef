"""What a gateway can tell of itself, as plain values for JSON.

Both the public endpoints and the admin port are made of this. Load is this process's own, so that
several processes' reports add up.
"""

from collections.abc import Collection

from expediter.clock import Clock
from expediter.cluster.decisions import Decision
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Member, Membership
from expediter.gateway.activity import answers_of, prefixes_of, stages_of
from expediter.gateway.observations import Histogram, Observations, Series
from expediter.gateway.pair_reports import pair_fields
from expediter.gateway.shared_load import SharedWork
from expediter.load import WorkerId
from expediter.routing.outstanding import OutstandingWork
from expediter.routing.prefix_index import PrefixIndex

MAX_DECISIONS = 1000
DEFAULT_DECISIONS = 100
EVENT_BLOCK_BYTES = 200
ASSUMED_KEY_BYTES = 160
"""What a block at a worker takes in the index, with its names, as measured."""

LATENCIES = {
    "ttft_seconds": "ttft",
    "time_per_output_token_seconds": "token",
    "request_seconds": "total",
    "queueing_seconds": "queueing",
    "routing_seconds": "routing",
}

Json = dict[str, object]


class Reports:
    """Reads a gateway's parts when it is asked."""

    def __init__(
        self,
        *,
        membership: Membership,
        dispatcher: Dispatcher,
        index: PrefixIndex,
        observations: Observations,
        clock: Clock,
    ) -> None:
        self.membership = membership
        self.dispatcher = dispatcher
        self.index = index
        self.observations = observations
        self._clock = clock
        self._started_at = clock()

    @property
    def work(self) -> OutstandingWork:
        """What this process has in flight."""
        work = self.dispatcher.work
        return work.own if isinstance(work, SharedWork) else work

    def readiness(self) -> Json:
        """Whether anybody can be served."""
        num_ready = len(self.membership.ready())
        return {"ready": num_ready > 0, "num_ready_workers": num_ready}

    def models(self) -> Json:
        """Every model once, as the first worker that serves it describes it."""
        cards: dict[str, object] = {}
        for member in reversed(self.membership.ready()):
            cards |= member.model_cards
        return {"object": "list", "data": list(cards.values())}

    def workers(self) -> list[Json]:
        """Every worker, with what is in flight there and what it is known to have cached."""
        return [self._worker(member) for member in self.membership.members.values()]

    def worker(self, worker_id: WorkerId) -> Json:
        """One of them; KeyError if there is none of that name."""
        return self._worker(self.membership.members[worker_id])

    def index_bytes(self) -> int:
        """About how much memory the index takes."""
        index, worker_ids = self.index, self.membership.members
        return sum(
            index.num_blocks(worker_id) * EVENT_BLOCK_BYTES
            + index.num_assumed_keys(worker_id) * ASSUMED_KEY_BYTES
            for worker_id in worker_ids
        )

    def decisions(self, limit: int = DEFAULT_DECISIONS) -> list[Json]:
        """The last decisions, newest first."""
        recent = list(self.dispatcher.log.recent)
        return [self._decision(decision) for decision in recent[::-1][: max(0, limit)]]

    def stats(self) -> Json:
        """A snapshot for a dashboard: totals since the start, histograms, every worker."""
        log, work = self.dispatcher.log, self.work
        worker_ids = self.membership.members
        series = [found for _, found in self.observations.series(worker_ids)]
        return {
            "uptime_seconds": round(self._clock() - self._started_at, 3),
            "requests": {
                "in_flight": sum(work.num_requests(worker_id) for worker_id in worker_ids),
                "placed": sum(log.num_by_reason.values()),
                "retries": log.num_retries,
                "retries_refused": log.num_retries_refused,
                "unplaced": log.num_unplaced,
            },
            "statuses": _statuses(series),
            "refusals": dict(self.observations.refusals),
            "reasons": dict(log.num_by_reason),
            "latency": {
                name: _histogram([getattr(found, attribute) for found in series])
                for name, attribute in LATENCIES.items()
            },
            "index_bytes": self.index_bytes(),
            "workers": self.workers(),
        }

    def activity(self) -> Json:
        """What the last minutes were like, and what their prompts shared."""
        now = self._clock()
        return {
            "answers": answers_of(self.dispatcher.log.recent, now=now),
            "prefixes": prefixes_of(self.observations.prefixes.tree(), self.index, now=now),
        }

    def _worker(self, member: Member) -> Json:
        worker_id, work = member.worker_id, self.work
        tally = self.dispatcher.log.workers.get(worker_id)
        load = member.load
        return {
            "worker_id": worker_id,
            "url": member.endpoint.url,
            "role": member.role,
            "status": member.status,
            "breaker": member.breaker.state,
            "is_draining": member.is_draining,
            "models": list(member.models),
            "kv_events": [source.events for source in member.subscribers],
            "num_requests": work.num_requests(worker_id),
            "load_tokens": work.tokens(worker_id),
            "num_blocks": self.index.num_blocks(worker_id),
            "num_assumed_blocks": self.index.num_assumed_blocks(worker_id),
            "num_relearnt": self.dispatcher.predictions.num_relearnt.get(worker_id, 0),
            "num_others": member.num_others,
            "num_running": load.num_running if load is not None else None,
            "num_waiting": load.num_waiting if load is not None else None,
            "kv_usage": load.kv_usage if load is not None else None,
            "total_requests": tally.num_requests if tally is not None else 0,
            "total_failures": tally.num_failures if tally is not None else 0,
            "prompt_tokens": tally.prompt_tokens if tally is not None else 0,
            "predicted_cached_tokens": tally.predicted_cached_tokens if tally is not None else 0,
            "actual_cached_tokens": tally.actual_cached_tokens if tally is not None else 0,
        }

    def _decision(self, decision: Decision) -> Json:
        return {
            "request_id": decision.request_id,
            "age_seconds": round(self._clock() - decision.placed_at, 3),
            "worker": decision.worker_id,
            "reason": decision.reason,
            "num_tokens": decision.num_tokens,
            "prompt_tokens": decision.prompt_tokens,
            "matched_tokens": decision.matched_tokens,
            "cached_tokens": decision.cached_tokens,
            "output_tokens": decision.output_tokens,
            "scores": dict(decision.scores),
            "num_tries": decision.num_tries,
            "status": decision.status,
            "ttft_seconds": decision.ttft,
            "error": decision.error,
            "stages": stages_of(decision),
            **pair_fields(decision),
        }


def _statuses(series: Collection[Series]) -> dict[str, int]:
    statuses: dict[str, int] = {}
    for found in series:
        for status, count in found.statuses.items():
            statuses[str(status)] = statuses.get(str(status), 0) + count
    return statuses


def _histogram(histograms: Collection[Histogram]) -> Json:
    """Counts by bucket, added up; the last bucket has no upper bound."""
    first = next(iter(histograms), None)
    if first is None:
        return {"bounds": [], "counts": [], "sum": 0.0}
    columns = zip(*(histogram.counts for histogram in histograms), strict=True)
    return {
        "bounds": list(first.bounds),
        "counts": [sum(column) for column in columns],
        "sum": sum(histogram.total for histogram in histograms),
    }
