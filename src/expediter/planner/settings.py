"""What `expediter plan size` is asked: a model, hardware, traffic, targets."""

from typing import Annotated

import msgspec

from expediter.config import Fraction, NotNegative, Positive, Seconds, Section
from expediter.model_spec import DTYPE_BYTES

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

    def __post_init__(self) -> None:
        """Types that have no known size are errors."""
        for key, dtype in (("kv-dtype", self.kv_dtype), ("weight-dtype", self.weight_dtype)):
            if dtype not in DTYPE_BYTES:
                raise ValueError(f"{key}: {dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        if (self.pools is None) != (self.pool_rates is None):
            raise ValueError("pools and pool-rates: one needs the other")
