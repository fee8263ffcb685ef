"""What Prometheus sees: a collector that reads snapshots when it is asked, and counts nothing."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from expediter.cluster.decisions import TTFT_BUCKETS, DecisionLog, Histogram
from expediter.cluster.dispatcher import Dispatcher
from expediter.cluster.membership import Membership, WorkerStatus
from expediter.gateway.replies import Reply
from expediter.routing.prefix_index import PrefixIndex

_TALLIES = {
    "requests": "Requests sent to the worker, tries included",
    "failures": "Requests the worker lost or left unanswered",
    "prompt_tokens": "Prompt tokens of answers that told their usage",
    "predicted_cached_tokens": "Prompt tokens the router took to be cached, of the same requests",
    "actual_cached_tokens": "Prompt tokens that were cached, as the worker says",
}


class GatewayMetrics:
    """Renders the state of a gateway's parts."""

    def __init__(
        self, *, membership: Membership, dispatcher: Dispatcher, index: PrefixIndex
    ) -> None:
        self._membership = membership
        self._dispatcher = dispatcher
        self._index = index
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def reply(self) -> Reply:
        """The answer to a scrape."""
        return Reply(
            body=generate_latest(self._registry), content_type=CONTENT_TYPE_LATEST.encode()
        )

    def describe(self) -> list[Metric]:
        """Nothing before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything, read now."""
        log = self._dispatcher.log
        yield from _decision_metrics(log)
        yield from self._worker_metrics(log)
        yield from self._cache_metrics()

    def _worker_metrics(self, log: DecisionLog) -> Iterator[Metric]:
        up = GaugeMetricFamily("expediter_worker_up", "1 if it may get requests", labels=["worker"])
        busy = GaugeMetricFamily(
            "expediter_requests_in_flight", "Requests at the worker", labels=["worker"]
        )
        load = GaugeMetricFamily(
            "expediter_outstanding_tokens",
            "Work at the worker, in tokens of prefill",
            labels=["worker"],
        )
        for worker_id, member in self._membership.members.items():
            up.add_metric([worker_id], float(member.status is WorkerStatus.UP))
            busy.add_metric([worker_id], self._dispatcher.work.num_requests(worker_id))
            load.add_metric([worker_id], self._dispatcher.work.tokens(worker_id))
        yield from (up, busy, load)
        for name, text in _TALLIES.items():
            attribute = name if "tokens" in name else f"num_{name}"
            counter = CounterMetricFamily(f"expediter_worker_{name}", text, labels=["worker"])
            for worker_id, tally in log.workers.items():
                counter.add_metric([worker_id], getattr(tally, attribute))
            yield counter
        ttft = HistogramMetricFamily(
            "expediter_time_to_first_token_seconds",
            "From placement to the first byte of a successful answer",
            labels=["worker"],
        )
        for worker_id, tally in log.workers.items():
            ttft.add_metric([worker_id], _buckets(tally.ttft), tally.ttft.total)
        yield ttft

    def _cache_metrics(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "expediter_index_blocks",
            "Blocks the index holds, told by events or assumed from placements",
            labels=["worker", "source"],
        )
        lost = CounterMetricFamily(
            "expediter_kv_events_lost", "Times a worker's view was relearnt", labels=["worker"]
        )
        for worker_id, member in self._membership.members.items():
            blocks.add_metric([worker_id, "events"], self._index.num_blocks(worker_id))
            blocks.add_metric([worker_id, "assumed"], self._index.num_assumed_blocks(worker_id))
            lost.add_metric([worker_id], sum(s.num_lost for s in member.subscribers.values()))
        yield from (blocks, lost)


def _decision_metrics(log: DecisionLog) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "expediter_decisions", "Placements by the policy's reason", labels=["reason"]
    )
    for reason, count in log.num_by_reason.items():
        decisions.add_metric([reason], count)
    yield decisions
    retries = CounterMetricFamily("expediter_retries", "Placements after a worker had failed")
    retries.add_metric([], log.num_retries)
    yield retries
    unplaced = CounterMetricFamily("expediter_unplaced", "Requests for which no worker was left")
    unplaced.add_metric([], log.num_unplaced)
    yield unplaced


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus wants them."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, TTFT_BUCKETS), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
