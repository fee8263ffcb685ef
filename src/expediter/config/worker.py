"""Settings of one worker: its cache, its scheduler, its engine, its server."""

from typing import Literal

from expediter.config.section import Port, Positive, Seconds, Section


class KVCacheConfig(Section, frozen=True, kw_only=True):
    """`capacity_bytes` is one worker's KV memory; `num_blocks`, when given, overrides it."""

    block_size: Positive = 16  # tokens
    prefix_caching: bool = True
    prefix_cache: Literal["hash", "radix"] = "radix"
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
    """`dtype` and `device` "auto" take what is fastest on this machine.

    The model is split over `tensor_parallel` processes, its ranks. With several, `num_threads` are
    those of one. Ranks give up if one is silent within a step for `rank_timeout_seconds`.
    """

    model: str = ""
    tensor_parallel: Positive = 1
    rank_timeout_seconds: Seconds = 60.0
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: Positive | None = None
    max_model_len: Positive | None = None
    seed: int = 0


class TransferConfig(Section, frozen=True, kw_only=True):
    """Moving KV between workers. Other workers connect to `port` (0: any) of the worker's host.

    `advertised_host` is how they reach it if that is another name. Blocks are held for
    `lease_seconds`; `patience_seconds` is how long one that asks may be ahead of its request.
    `transports` are ways to copy, best first; those that do not work here are left out.
    """

    enabled: bool = True
    port: Port = 0
    advertised_host: str | None = None
    lease_seconds: Seconds = 30.0  # vLLM's `kv_lease_duration`
    patience_seconds: Seconds = 10.0
    transports: tuple[Literal["shared-memory", "nixl", "tcp"], ...] = ("shared-memory", "tcp")


class WorkerConfig(Section, frozen=True, kw_only=True):
    """One worker's HTTP server. `kv_events` and `kv_replay` are ZeroMQ endpoints to bind.

    `role` is told to whoever asks; a worker can always do both.
    """

    worker_id: str = "worker-0"
    role: Literal["both", "prefill", "decode"] = "both"
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
    transfer: TransferConfig = TransferConfig()
