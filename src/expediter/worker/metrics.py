"""The worker in Prometheus' words, under vLLM's names.

Nothing is counted here: at each scrape a collector reads what scheduler, cache and stats know.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from expediter.config import WorkerConfig
from expediter.request import FinishReason
from expediter.worker.families import Families
from expediter.worker.handover.live import LiveHandover
from expediter.worker.handover.metrics import transfer_metrics
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.stats import ServingStats
from expediter.worker.worker import Worker

ENGINE = "0"


class WorkerCollector(Collector):
    """Reads one worker."""

    def __init__(
        self,
        worker: Worker,
        *,
        stats: ServingStats,
        model_name: str,
        config: WorkerConfig,
        publisher: KVEventPublisher | None = None,
        handover: LiveHandover | None = None,
    ) -> None:
        self._worker = worker
        self._stats = stats
        self._families = Families((model_name, ENGINE))
        self._config = config
        self._publisher = publisher
        self._handover = handover

    def collect(self) -> Iterator[Metric]:
        """Every metric, as it is now."""
        yield from self._load()
        yield from self._counts()
        yield self._by_source()
        yield self._finished()
        yield from self._latencies()
        yield self._cache_config()
        yield self._families.gauge(
            "expediter:tensor_parallel_size",
            "Processes that the model is split over.",
            self._config.engine.tensor_parallel,
        )
        if self._handover is not None:
            yield from transfer_metrics(self._handover, self._families)
        if self._publisher is not None:
            dropped = self._publisher.num_dropped_batches
            text = "Batches of KV events that a slow listener missed."
            yield self._families.counter("expediter:kv_event_batches_dropped", text, dropped)

    def _load(self) -> Iterator[Metric]:
        load = self._worker.load()
        yield self._families.gauge(
            "vllm:num_requests_running", "Requests in the batch.", load.num_running
        )
        yield self._families.gauge(
            "vllm:num_requests_waiting", "Requests waiting.", load.num_waiting
        )
        text = "Share of KV blocks that requests hold, 0 to 1."
        yield self._families.gauge("vllm:kv_cache_usage_perc", text, load.kv_usage)

    def _counts(self) -> Iterator[Metric]:
        scheduler, cache = self._worker.scheduler, self._worker.scheduler.kv_cache
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up.", cache.num_queried_tokens),
            ("prefix_cache_hits", "Prompt tokens found cached.", cache.num_hit_tokens),
            ("prompt_tokens", "Prompt tokens processed.", cache.num_queried_tokens),
            ("generation_tokens", "Tokens generated.", self._stats.num_generated_tokens),
            ("num_preemptions", "Requests that lost their blocks.", scheduler.num_preemptions),
        ):
            yield self._families.counter(f"vllm:{name}", text, value)

    def _by_source(self) -> Metric:
        cache = self._worker.scheduler.kv_cache
        num_received = 0 if self._handover is None else self._handover.stats.num_tokens
        num_computed = cache.num_queried_tokens - cache.num_hit_tokens - num_received
        by_source = {
            "local_compute": max(0, num_computed),  # of transfers under way nothing came yet
            "local_cache_hit": cache.num_hit_tokens,
            "external_kv_transfer": num_received,
        }
        return self._families.counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            by_source,
            label="source",
        )

    def _finished(self) -> Metric:
        return self._families.counters(
            "vllm:request_success",
            "Sequences that ended, by reason.",
            {reason.value: self._stats.num_finished[reason] for reason in FinishReason},
            label="finished_reason",
        )

    def _latencies(self) -> Iterable[Metric]:
        stats = self._stats
        for name, text, values in (
            ("time_to_first_token_seconds", "Seconds. First token.", stats.first_token),
            ("inter_token_latency_seconds", "Seconds. Between tokens.", stats.inter_token),
            ("e2e_request_latency_seconds", "Seconds. Last token.", stats.request),
            ("request_queue_time_seconds", "Seconds. Before the first step.", stats.queue),
        ):
            yield self._families.histogram(f"vllm:{name}", text, values)

    def _cache_config(self) -> Metric:
        cache = self._worker.scheduler.kv_cache
        labels = {
            "block_size": str(cache.block_size),
            "num_gpu_blocks": str(cache.num_total_blocks),
            "enable_prefix_caching": str(self._config.kv_cache.prefix_caching),
            "prefix_caching_hash_algo": "sha256",
            "engine": ENGINE,
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "How the KV cache is set up.", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1)
        return family


def worker_registry(collector: WorkerCollector) -> CollectorRegistry:
    """A registry of its own, so that two workers in one process do not mix."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
