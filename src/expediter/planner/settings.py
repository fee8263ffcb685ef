"""What `expediter plan` is asked: a model, hardware, traffic, targets."""

from typing import Annotated

import msgspec

from expediter.config import Fraction, NotNegative, PolicyName, Positive, Seconds, Section
from expediter.model_spec import DTYPE_BYTES
from expediter.planner.own import OwnFacts
from expediter.workload.catalog import TraceFormat

Tokens = Annotated[int, msgspec.Meta(ge=0)]


class SizeConfig(Section, frozen=True, kw_only=True):
    """A fleet of `replicas`, each of `gpus` GPUs that share every layer (tensor parallel).

    A prompt is `shared` + `history` + `new` tokens. `ttft` and `tpot` are targets in seconds.
    `link` names what KV moves over, `links` of them in parallel (by default one a GPU).
    """

    model: str = "llama3-70b"
    kv_dtype: str = "float16"
    weight_dtype: str = "bfloat16"
    gpu: str = "h100"
    gpus: Positive = 8  # a replica
    memory_share: Fraction = 0.9  # of a GPU's memory; activations and the runtime need the rest
    replicas: Positive = 8
    cost: str = "linear"
    rate: Seconds | None = None  # requests a second
    shared: Tokens = 0
    history: Tokens = 0
    new: Positive = 1000
    output: Positive = 300
    hit_rate: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None  # instead of an expected one
    cache_tokens: Positive | None = None  # of a replica, instead of what fits
    ttft: Seconds | None = None
    tpot: Seconds | None = None
    link: tuple[str, ...] = ()
    links: Positive | None = None
    offload: str | None = None  # the link to a slower tier of the cache
    uplink: str | None = None  # from a robot to the cloud
    prompt_bytes: NotNegative | None = None  # of the prompt as text and images, on that link
    pools: tuple[Positive, Positive] | None = None  # GPUs for prefill and for decode
    pool_rates: tuple[Seconds, Seconds] | None = None  # requests/s that one GPU of each serves
    colocated_rate: Seconds | None = None  # and one that does both
    json: str | None = None
    own: OwnFacts = OwnFacts()

    def __post_init__(self) -> None:
        """Types that have no known size are errors."""
        _check_types(self.kv_dtype, self.weight_dtype)
        if (self.pools is None) != (self.pool_rates is None):
            raise ValueError("pools and pool-rates: one needs the other")


class TrafficConfig(Section, frozen=True, kw_only=True):
    """Requests, generated or recorded, and what is promised: the same for goodput and search.

    Each sample is `requests` requests. `share` of them are to be within `ttft` and within `tpot`
    seconds. `tolerance` is how closely a rate is found, relative to it.
    """

    workload: str | None = None
    trace: str | None = None
    format: TraceFormat | None = None
    requests: Positive = 300
    samples: Positive = 3
    seed: int = 0
    ttft: Seconds
    tpot: Seconds
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.9
    tolerance: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.03
    policy: PolicyName = "least-loaded"
    prefix_caching: bool = True
    block_size: Positive = 256  # tokens

    def __post_init__(self) -> None:
        """A trace has a format, and is used instead of a workload."""
        if self.workload is not None and self.trace is not None:
            raise ValueError("workload and trace: there can be only one of them")
        if (self.trace is None) != (self.format is None):
            raise ValueError("trace and format: one needs the other")


class GoodputConfig(TrafficConfig, frozen=True, kw_only=True):
    """One deployment: `replicas` that do both, or with `decode` some of each kind.

    `cost` and `cache_tokens` are of one replica on `gpus` GPUs; `decode_cost` and `decode_tokens`,
    where given, of one that decodes. `transfer` is the link that KV moves over, `links` of them.
    """

    cost: str = "llama3-70b_h100_sxm_sglang_tp8"
    gpus: Positive = 8
    replicas: Positive = 1
    cache_tokens: Positive = 1_300_000
    budget: Positive = 8192  # tokens a step
    max_running: Positive = 256
    decode: Positive | None = None  # replicas that only decode; the others then only prefill
    decode_cost: str | None = None
    decode_gpus: Positive | None = None
    decode_tokens: Positive | None = None
    kv_bytes: Positive = 327_680  # a token, for the transfer
    transfer: str = "nic400"
    links: Positive | None = None
    json: str | None = None


class SearchConfig(TrafficConfig, frozen=True, kw_only=True):
    """Everything that fits on `gpus` GPUs, in nodes of `gpus_per_node`.

    `cost` names measured step times, with `{tp}` for the tensor-parallel size; without it they are
    a roofline of `model` on `gpu`. `price` is of a GPU and hour. The best `finalists` are simulated
    whole. `config` and `commands` are files to write for the winner.
    """

    model: str = "llama3-70b"
    kv_dtype: str = "float16"
    weight_dtype: str = "bfloat16"
    gpu: str = "h100"
    gpus: Positive = 8
    gpus_per_node: Positive = 8
    memory_share: Fraction = 0.9
    min_context: Positive = 4096  # tokens of KV that a stage of the pipeline must hold
    cost: str | None = None
    price: Annotated[float, msgspec.Meta(gt=0)] | None = None
    budgets: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)] = (512, 2048, 8192)
    max_running: Positive = 256
    within_node: str = "nvlink4"  # the links that KV moves over
    across_nodes: str = "nic400"
    finalists: Positive = 6
    processes: Positive | None = None  # by default one a core
    ray: bool = False
    json: str | None = None
    plot: str | None = None
    config: str | None = None
    commands: str | None = None
    own: OwnFacts = OwnFacts()

    def __post_init__(self) -> None:
        """As for all traffic, and types must have a size."""
        super().__post_init__()
        _check_types(self.kv_dtype, self.weight_dtype)


def _check_types(kv_dtype: str, weight_dtype: str) -> None:
    for key, dtype in (("kv-dtype", kv_dtype), ("weight-dtype", weight_dtype)):
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"{key}: {dtype!r} is not one of {', '.join(DTYPE_BYTES)}")


class WatchConfig(Section, frozen=True, kw_only=True):
    """A live gateway, by its admin port, and what its traffic of the last `seconds` is held to.

    `cost`, `gpus` and `cache_tokens` describe one worker; `calibrate` measures a cost. `policies`
    and numbers of workers up to `max_workers` are tried, and how they split in two pools.
    """

    gateway: str
    token: str | None = None
    seconds: Seconds = 600.0
    ttft: Seconds
    tpot: Seconds
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.9
    cost: str
    gpus: Positive = 1
    cache_tokens: Positive = 1_300_000
    budget: Positive = 8192
    max_running: Positive = 256
    policies: Annotated[tuple[PolicyName, ...], msgspec.Meta(min_length=1)] = (
        "slo",
        "cache-aware",
        "least-loaded",
        "sticky",
    )
    max_workers: Positive | None = None  # by default twice as many as there are
    splits: bool = True
    kv_bytes: Positive = 327_680  # a token, for the transfer between pools
    transfer: str = "nic400"
    requests: Positive = 5000  # the newest of them
    block_size: Positive = 256
    processes: Positive | None = None
    json: str | None = None
