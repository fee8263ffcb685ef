"""Metric families of one worker, all with the same labels."""

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from expediter.worker.stats import Histogram

LABELS = ("model_name", "engine")


class Families:
    """Makes families with one sample, or one for each value of a further label."""

    def __init__(self, labels: tuple[str, str]) -> None:
        self._labels = labels

    def gauge(self, name: str, text: str, value: float) -> Metric:
        """What is now."""
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        """What has been so far."""
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def counters(self, name: str, text: str, values: Mapping[str, float], *, label: str) -> Metric:
        """The same, by something."""
        family = CounterMetricFamily(name, text, labels=[*LABELS, label])
        for word, value in values.items():
            family.add_metric([*self._labels, word], value)
        return family

    def histogram(self, name: str, text: str, values: Histogram) -> Metric:
        """Values by bucket."""
        family = HistogramMetricFamily(name, text, labels=LABELS)
        buckets, total = [], 0
        for bound, count in zip((*map(str, values.bounds), "+Inf"), values.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(self._labels, buckets, values.sum)
        return family
