"""What Prometheus sees: a collector that reads snapshots when it is asked, and counts nothing."""

import asyncio
import sys
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from expediter.cluster.breaker import BreakerState
from expediter.cluster.decisions import DecisionLog
from expediter.cluster.membership import WorkerStatus
from expediter.gateway.observations import Histogram
from expediter.gateway.pair_reports import pair_metrics
from expediter.gateway.replies import Reply
from expediter.gateway.reports import Reports

_TALLIES = {
    "requests": "Requests sent to the worker, tries included",
    "failures": "Requests the worker lost or left unanswered",
    "prompt_tokens": "Prompt tokens of answers that told their usage",
    "predicted_cached_tokens": "Prompt tokens the router took to be cached, of the same requests",
    "actual_cached_tokens": "Prompt tokens that were cached, as the worker says",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("ttft", "From a request's arrival to its answer's first byte"),
    "time_per_output_token_seconds": ("token", "Of an answer that told its usage, after the first"),
    "request_seconds": ("total", "From a request's arrival to its answer's last byte"),
    "queueing_seconds": ("queueing", "From a request's arrival until it is ready to be placed"),
    "routing_seconds": ("routing", "What it took to choose a worker"),
}
_SERIES = ["model", "worker", "class"]
_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class GatewayMetrics:
    """Renders the state of a gateway's parts."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)  # memory, descriptors, CPU time

    def page(self) -> bytes:
        """A scrape."""
        return generate_latest(self._registry)

    def reply(self) -> Reply:
        """The answer to a scrape."""
        return Reply(body=self.page(), content_type=CONTENT_TYPE_LATEST.encode())

    def describe(self) -> list[Metric]:
        """Nothing before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything, read now; in the event loop, whose tasks are counted."""
        log = self._reports.dispatcher.log
        yield GaugeMetricFamily(
            "expediter_tasks",
            "Background work, and requests that wait for more than an answer",
            value=len(asyncio.all_tasks()),
        )
        yield GaugeMetricFamily(
            "expediter_memory_blocks", "Blocks that Python uses", value=sys.getallocatedblocks()
        )
        yield from _decision_metrics(log)
        yield from pair_metrics(log)
        yield from self._request_metrics()
        yield from self._worker_metrics()
        yield from self._reported_metrics()
        yield from self._tally_metrics()
        yield from self._cache_metrics()

    def _request_metrics(self) -> Iterator[Metric]:
        observations = self._reports.observations
        requests = CounterMetricFamily(
            "expediter_requests",
            "Requests that were placed and have ended",
            labels=[*_SERIES, "status"],
        )
        families = {
            attribute: HistogramMetricFamily(f"expediter_{name}", text, labels=_SERIES)
            for name, (attribute, text) in _HISTOGRAMS.items()
        }
        for labels, series in observations.series(self._reports.membership.members):
            values = [labels.model, labels.worker, labels.slo_class]
            for status, count in series.statuses.items():
                requests.add_metric([*values, str(status)], count)
            for attribute, family in families.items():
                histogram: Histogram = getattr(series, attribute)
                family.add_metric(values, _buckets(histogram), histogram.total)
        yield requests
        yield from families.values()
        refusals = CounterMetricFamily(
            "expediter_rejections", "Requests refused before they were placed", labels=["kind"]
        )
        for kind, count in observations.refusals.items():
            refusals.add_metric([kind], count)
        yield refusals

    def _worker_metrics(self) -> Iterator[Metric]:
        work = self._reports.work
        up = _gauge("expediter_worker_up", "1 if it may get requests")
        draining = _gauge("expediter_worker_draining", "1 if it finishes what it has")
        breaker = _gauge("expediter_worker_breaker", "0 is closed, 1 half-open, 2 open")
        busy = _gauge("expediter_requests_in_flight", "Requests at the worker")
        load = _gauge("expediter_outstanding_tokens", "Work at the worker, in tokens of prefill")
        opened = CounterMetricFamily(
            "expediter_worker_breaker_opened", "Times the breaker has opened", labels=["worker"]
        )
        for worker_id, member in self._reports.membership.members.items():
            label = [worker_id]
            up.add_metric(label, float(member.status is WorkerStatus.UP))
            draining.add_metric(label, float(member.is_draining))
            breaker.add_metric(label, _BREAKER[member.breaker.state])
            opened.add_metric(label, member.breaker.num_opened)
            busy.add_metric(label, work.num_requests(worker_id))
            load.add_metric(label, work.tokens(worker_id))
        yield from (up, draining, breaker, opened, busy, load)

    def _reported_metrics(self) -> Iterator[Metric]:
        """What workers say of themselves; those that say nothing have no samples."""
        usage = _gauge("expediter_worker_kv_usage", "Share of its KV memory in use, from 0 to 1")
        running = _gauge("expediter_worker_running", "Requests it runs")
        waiting = _gauge("expediter_worker_waiting", "Requests that wait there")
        others = _gauge("expediter_worker_other_requests", "Requests there that others sent")
        for worker_id, member in self._reports.membership.members.items():
            load = member.load
            if load is None:
                continue
            others.add_metric([worker_id], member.num_others)
            running.add_metric([worker_id], load.num_running)
            waiting.add_metric([worker_id], load.num_waiting)
            if load.kv_usage is not None:
                usage.add_metric([worker_id], load.kv_usage)
        yield from (usage, running, waiting, others)

    def _tally_metrics(self) -> Iterator[Metric]:
        """Of workers that are still there, or the series would grow without end."""
        tallies = self._reports.dispatcher.log.workers
        for name, text in _TALLIES.items():
            attribute = name if "tokens" in name else f"num_{name}"
            counter = CounterMetricFamily(f"expediter_worker_{name}", text, labels=["worker"])
            for worker_id in self._reports.membership.members:
                if worker_id in tallies:
                    counter.add_metric([worker_id], getattr(tallies[worker_id], attribute))
            yield counter

    def _cache_metrics(self) -> Iterator[Metric]:
        index, predictions = self._reports.index, self._reports.dispatcher.predictions
        blocks = GaugeMetricFamily(
            "expediter_index_blocks",
            "Blocks the index holds, told by events or assumed from placements",
            labels=["worker", "source"],
        )
        lost = CounterMetricFamily(
            "expediter_kv_events_lost", "Times events were lost for good", labels=["worker"]
        )
        relearnt = CounterMetricFamily(
            "expediter_views_relearnt", "Times answers contradicted the view", labels=["worker"]
        )
        for worker_id, member in self._reports.membership.members.items():
            blocks.add_metric([worker_id, "events"], index.num_blocks(worker_id))
            blocks.add_metric([worker_id, "assumed"], index.num_assumed_blocks(worker_id))
            lost.add_metric([worker_id], sum(s.num_lost for s in member.subscribers.values()))
            relearnt.add_metric([worker_id], predictions.num_relearnt.get(worker_id, 0))
        yield from (blocks, lost, relearnt)
        yield GaugeMetricFamily(
            "expediter_index_bytes",
            "Memory of the index, by what a block takes on average",
            value=self._reports.index_bytes(),
        )
        yield CounterMetricFamily(
            "expediter_kv_events_orphaned",
            "Stored blocks left out because their parent is not known",
            value=index.num_unknown_parents,
        )


def _decision_metrics(log: DecisionLog) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "expediter_decisions", "Placements by the policy's reason", labels=["reason"]
    )
    for reason, count in log.num_by_reason.items():
        decisions.add_metric([reason], count)
    yield decisions
    for name, text, count in (
        ("retries", "Placements after a worker had failed", log.num_retries),
        ("retries_refused", "Retries there was no budget for", log.num_retries_refused),
        ("unplaced", "Requests for which no worker was left", log.num_unplaced),
    ):
        yield CounterMetricFamily(f"expediter_{name}", text, value=count)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["worker"])


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus wants them."""
    total = 0
    buckets: list[tuple[str, float]] = []
    bounds = (*map(str, histogram.bounds), "+Inf")
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
