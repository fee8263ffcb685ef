"""Reports of several processes as one: counts are added, the rest is as the first has it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from expediter.gateway.reports import Json

_OF_A_WORKER = frozenset({"num_running", "num_waiting", "kv_usage", "num_others"})
"""What a worker says of itself is the same in every process."""


def merged_metrics(pages: Mapping[int, bytes]) -> bytes:
    """Pages for Prometheus by process, each sample with the label `process`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(pages))
    return generate_latest(registry)


class _Merged:
    """Pages of metrics as one, each sample with its process."""

    def __init__(self, pages: Mapping[int, bytes]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number, page in self._pages.items():
            for family in text_string_to_metric_families(page.decode()):
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "process": str(number)}
                    merged.add_sample(sample.name, labels, sample.value)
        yield from families.values()


def merged_workers(found: Sequence[Sequence[Mapping[str, Any]]]) -> list[Json]:
    """Each worker once: counts are added, the rest is as the first process has it."""
    merged: dict[str, Json] = {}
    for workers in found:
        for worker in workers:
            name = worker["worker_id"]
            if name not in merged:
                merged[name] = dict(worker)
                continue
            for key, value in worker.items():
                if _is_count(value) and key not in _OF_A_WORKER:
                    merged[name][key] = merged[name].get(key, 0) + value
    return list(merged.values())


def merged_counts(values: Sequence[Any]) -> Any:
    """Counts added, dicts by key, histograms' counts by place; other values as the first has."""
    first = next((value for value in values if value), values[0])
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _merge_key(key, [v[key] for v in values if key in v]) for key in keys}
    if _is_count(first):
        return sum(values)
    return first


def _merge_key(key: str, values: Sequence[Any]) -> Any:
    if key == "uptime_seconds":
        return max(values)
    if key == "counts":
        rows = [row for row in values if row]
        return [sum(column) for column in zip(*rows, strict=True)]
    return merged_counts(values)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
