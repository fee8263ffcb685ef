"""What a gateway tells of requests that two workers served: for `/decisions` and for metrics."""

from collections.abc import Iterator

from msgspec.structs import asdict
from prometheus_client.core import CounterMetricFamily, Metric

from expediter.cluster.decisions import Decision, DecisionLog

_TOTALS = (
    ("transfers", "Times a worker fetched KV from another, as it says", "num_transfers"),
    ("transfer_bytes", "KV fetched", "num_bytes"),
    ("transfer_tokens", "Prompt tokens whose KV was fetched", "num_tokens"),
    ("transfer_seconds", "Time spent copying", "seconds"),
    ("transfer_exposed_seconds", "Of it, after the prompt was computed", "exposed_seconds"),
)


def pair_fields(decision: Decision) -> dict[str, object]:
    """The part of a decision that is about the other worker; costs are seconds."""
    return {
        "prefill_worker": decision.prefill_worker_id,
        "prefill_matched_tokens": decision.prefill_matched_tokens,
        "prefill_cached_tokens": decision.prefill_cached_tokens,
        "prefill_seconds": decision.prefill_seconds,
        "prefill_error": decision.prefill_error,
        "costs": decision.costs,
        "fallback": decision.fallback,
        "transfer": asdict(decision.transfer) if decision.transfer is not None else None,
    }


def pair_metrics(log: DecisionLog) -> Iterator[Metric]:
    """Totals since the start."""
    pairs = CounterMetricFamily("expediter_pairs", "Requests placed at two workers")
    pairs.add_metric([], log.num_pairs)
    yield pairs
    fallbacks = CounterMetricFamily(
        "expediter_fallbacks", "Requests that one worker served instead of two", labels=["reason"]
    )
    for reason, count in log.num_fallbacks.items():
        fallbacks.add_metric([reason], count)
    yield fallbacks
    for name, text, attribute in _TOTALS:
        total = getattr(log.transfers, attribute)
        yield CounterMetricFamily(f"expediter_{name}", text, value=total)
