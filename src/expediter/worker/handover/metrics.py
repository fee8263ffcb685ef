"""Transfers in Prometheus' words: vLLM's names where it has one, and ours."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from expediter.worker.families import Families
from expediter.worker.handover.live import LiveHandover


def transfer_metrics(handover: LiveHandover, families: Families) -> Iterator[Metric]:
    """Every one, as it is now. vLLM's count transfers of which something came."""
    stats = handover.stats
    yield families.histogram(
        "vllm:nixl_xfer_time_seconds", "Seconds spent copying, by transfer.", stats.seconds
    )
    yield families.histogram(
        "vllm:nixl_bytes_transferred", "Bytes copied, by transfer.", stats.num_bytes
    )
    yield families.histogram(
        "expediter:kv_transfer_exposed_seconds",
        "Seconds from the end of a prefill until all of its KV was here.",
        stats.exposed_seconds,
    )
    for name, text, value in (
        ("vllm:nixl_num_failed_transfers", "Transfers that failed.", stats.failures.total()),
        (
            "vllm:nixl_num_kv_expired_reqs",
            "Prompts whose KV nobody read in time.",
            handover.num_expired_leases,
        ),
        ("expediter:kv_transfer_bytes", "Bytes copied from others.", stats.num_bytes.sum),
        (
            "expediter:kv_transfer_hidden_bytes",
            "Those of them that came while the prompt was still computed.",
            stats.hidden_bytes,
        ),
        ("expediter:kv_transfer_slices", "Strided slices copied.", stats.num_descriptors),
    ):
        yield families.counter(name, text, value)
    yield families.counters(
        "expediter:kv_transfer_failures",
        "Transfers that failed, by reason.",
        dict(stats.failures),
        label="reason",
    )
    yield families.gauge(
        "expediter:kv_leased_blocks", "Blocks held for others.", handover.num_leased_blocks
    )
