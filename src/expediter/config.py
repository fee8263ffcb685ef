"""Every setting, one frozen section a component.

Each constructor gets its own section and never the root. Keys are kebab-case in TOML;
unknown keys are errors that name their path. This is the only file that reads the environment.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


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
    port: Port = 8001
    served_model_name: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    max_body_bytes: Positive = 32 * 1024 * 1024
    shutdown_seconds: Seconds = 10.0  # how long running requests may take to finish
    engine: EngineConfig = EngineConfig()
    kv_cache: KVCacheConfig = KVCacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()


class StickyConfig(Section, frozen=True, kw_only=True):
    """Where no session is named, the prompt's first `num_blocks` blocks are its key."""

    num_blocks: Positive = 160
    num_points: Positive = 100  # of a worker on the hash ring
    slack_requests: Annotated[int, msgspec.Meta(ge=0)] = 8  # that never count as overload


class SglangConfig(Section, frozen=True, kw_only=True):
    """The settings of SGLang's router, under its names; requests in flight are its load."""

    cache_threshold: Fraction = 0.3  # share of a prompt that must match
    balance_abs_threshold: Annotated[int, msgspec.Meta(ge=0)] = 64
    balance_rel_threshold: NotNegative = 1.5
    max_tree_tokens: Positive = 2**24  # a worker
    explore: Literal["smallest-tree", "shortest-queue"] = "smallest-tree"


class DynamoConfig(Section, frozen=True, kw_only=True):
    """The settings of NVIDIA Dynamo's KV router, under its names."""

    overlap_weight: NotNegative = 1.0
    temperature: NotNegative = 0.0  # 0 takes the best worker, more draws among the good ones


class PrebleConfig(Section, frozen=True, kw_only=True):
    """E2's settings. `gpu_cost` names the regression that turns tokens into seconds."""

    gpu_cost: str = "worked-example"
    window_seconds: Seconds = 180.0
    expected_output_tokens: Positive = 128  # until the workers' answers tell
    capacity_tokens: Positive | None = None  # KV memory of a worker that does not tell its own
    max_blocks: Positive = 2**20  # what is remembered at the most
    rebalance_threshold: NotNegative = 1.5
    imbalance_ratio: Fraction = 0.7  # 1 turns the balance of prefill and decode off


PolicyName = Literal[
    "cache-aware",
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "sticky",
    "sglang",
    "dynamo",
    "preble",
]


class RoutingConfig(Section, frozen=True, kw_only=True):
    """`load_weight` is lambda and `max_imbalance` epsilon of the cache-aware rule (and the ring's).

    `slack_tokens` is outstanding work that never counts as overload. The `assumed` settings
    bound what is taken to be cached at a worker that publishes no KV events.
    """

    policy: PolicyName = "cache-aware"
    load_weight: NotNegative = 0.0  # matched tokens that one token of load outweighs
    max_imbalance: NotNegative = 0.2
    slack_tokens: Annotated[int, msgspec.Meta(ge=0)] = 1024
    block_size: Positive = 16  # tokens in a block, until a worker's events tell its own
    assumed_blocks: Positive = 65536  # a worker
    assumed_seconds: Seconds = 600.0
    sticky: StickyConfig = StickyConfig()
    sglang: SglangConfig = SglangConfig()
    dynamo: DynamoConfig = DynamoConfig()
    preble: PrebleConfig = PrebleConfig()


class WorkerEndpoint(Section, frozen=True, kw_only=True):
    """A worker as the gateway sees it; without `kv_events` its cache is assumed from placements."""

    url: str
    worker_id: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None


class TenantConfig(Section, frozen=True, kw_only=True):
    """One tenant. `keys` are hashes of its API keys; a limit that is not set does not limit."""

    tenant_id: Annotated[str, msgspec.Meta(min_length=1)]
    keys: tuple[Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")], ...]
    cache_salt: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{16,128}$")] | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    max_concurrent: Positive | None = None


class TenancyConfig(Section, frozen=True, kw_only=True):
    """Who may use the gateway. `secret` makes the cache salts of tenants that give none."""

    tenants: tuple[TenantConfig, ...]
    secret: Annotated[str, msgspec.Meta(min_length=16)] | None = None
    worker_authorization: Annotated[str, msgspec.Meta(pattern="^[!-~]([ -~]*[!-~])?$")] | None = (
        None  # sent to workers; the clients' keys never are
    )
    assumed_output_tokens: Positive = 1024  # reserved where a request sets no limit


class GatewayConfig(Section, frozen=True, kw_only=True):
    """The front door. Time-outs are seconds and count silence, not total time."""

    host: str = "127.0.0.1"
    port: Port = 8000
    tokenizer: str | None = None  # folder or GGUF file; without it routing sees text, not tokens
    max_body_bytes: Positive = 32 * 1024 * 1024
    max_header_bytes: Positive = 64 * 1024
    connect_seconds: Seconds = 5.0
    first_byte_seconds: Seconds = 600.0
    idle_seconds: Seconds = 300.0
    header_seconds: Seconds = 30.0  # from a request's first byte to the end of its head
    keep_alive_seconds: Seconds = 75.0  # a client's connection without a request
    shutdown_seconds: Seconds = 10.0  # how long requests in flight may take to finish
    health_interval_seconds: Seconds = 1.0
    workers: tuple[WorkerEndpoint, ...] = ()
    routing: RoutingConfig = RoutingConfig()
    tenancy: TenancyConfig | None = None  # without it the gateway is open to all


class FleetConfig(Section, frozen=True, kw_only=True):
    """What `expediter up` runs: workers made from `[worker]`, and how it looks after them.

    A worker that dies is started again after `restart_seconds`, doubled each time up to
    `max_restart_seconds` and forgotten once it has stayed up that long.
    """

    num_workers: Positive = 3
    start_seconds: Seconds = 300.0  # until every process answers
    stop_seconds: Seconds = 15.0  # from SIGTERM to SIGKILL
    restart_seconds: Seconds = 0.5
    max_restart_seconds: Seconds = 30.0


class Config(Section, frozen=True, kw_only=True):
    """The whole file. `up` reads all of it, `worker` and `serve` their own section."""

    fleet: FleetConfig = FleetConfig()
    gateway: GatewayConfig = GatewayConfig()
    worker: WorkerConfig = WorkerConfig()


ENV_PREFIX = "EXPEDITER_"


def environment() -> Mapping[str, str]:
    """This process's environment; only the command line asks for it."""
    return os.environ


def child_environment(environ: Mapping[str, str], **defaults: str) -> dict[str, str]:
    """`environ` for a process that gets its settings in a file: ours dropped, `defaults` added."""
    inherited = {k: v for k, v in environ.items() if not k.startswith(ENV_PREFIX)}
    return defaults | inherited


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where fetched models are kept: EXPEDITER_CACHE, else `expediter` in the user's cache."""
    if chosen := environ.get("EXPEDITER_CACHE"):
        return Path(chosen)
    home = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "expediter"
