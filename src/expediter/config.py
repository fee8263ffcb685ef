"""Every setting, one frozen section a component.

Each constructor gets its own section and never the root. Keys are kebab-case in TOML;
unknown keys are errors that name their path. This is the only file that reads the environment.
"""

from typing import Annotated, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """What all sections share: immutable, keyword-only, strict."""


class KVCacheConfig(Section, frozen=True, kw_only=True):
    """`capacity_bytes` is one worker's KV memory; `num_blocks`, when given, overrides it."""

    block_size: Positive = 16  # tokens
    prefix_caching: bool = True
    prefix_cache: Literal["hash", "radix"] = "hash"
    capacity_bytes: Positive = 512 * 1024 * 1024
    num_blocks: Positive | None = None


class SchedulerConfig(Section, frozen=True, kw_only=True):
    """`policy` orders the waiting queue; `max_batched_tokens` is the budget of one step."""

    policy: Literal["fcfs", "longest-prefix", "prefix-quotas", "priority"] = "fcfs"
    max_batched_tokens: Positive = 2048
    max_running: Positive = 64
    chunked_prefill: bool = True
    lpm_fallback_threshold: Positive = 128  # waiting requests; SGLang's value
    num_priority_groups: Positive = 10  # Preble's P


class EngineConfig(Section, frozen=True, kw_only=True):
    """`dtype` and `device` "auto" take what is fastest on this machine."""

    model: str = ""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: Positive | None = None
    max_model_len: Positive | None = None
    seed: int = 0


class WorkerConfig(Section, frozen=True, kw_only=True):
    """One worker's HTTP server. `kv_events` and `kv_replay` are ZeroMQ endpoints to bind."""

    worker_id: str = "worker-0"
    host: str = "127.0.0.1"
    port: int = 8001
    served_model_name: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    shutdown_seconds: float = 10.0  # how long running requests may take to finish
    engine: EngineConfig = EngineConfig()
    kv_cache: KVCacheConfig = KVCacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()


class RoutingConfig(Section, frozen=True, kw_only=True):
    """`load_weight` is lambda and `max_imbalance` epsilon of the cache-aware rule."""

    policy: Literal["cache-aware", "round-robin", "random", "least-loaded"] = "cache-aware"
    load_weight: float = 0.0  # matched tokens that one token of load outweighs
    max_imbalance: float = 0.2
    block_size: Positive = 16  # tokens in a block of the router's own index


class WorkerEndpoint(Section, frozen=True, kw_only=True):
    """A worker as the gateway sees it; without `kv_events` its cache is assumed from placements."""

    url: str
    worker_id: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None


class GatewayConfig(Section, frozen=True, kw_only=True):
    """The front door. Time-outs are seconds and count silence, not total time."""

    host: str = "127.0.0.1"
    port: int = 8000
    tokenizer: str | None = None  # folder or GGUF file; without it routing sees text, not tokens
    max_body_bytes: Positive = 32 * 1024 * 1024
    max_header_bytes: Positive = 64 * 1024
    connect_seconds: float = 5.0
    first_byte_seconds: float = 600.0
    idle_seconds: float = 300.0
    health_interval_seconds: float = 1.0
    workers: tuple[WorkerEndpoint, ...] = ()
    routing: RoutingConfig = RoutingConfig()
