"""Settings of placement: which policy, and each policy's own."""

from typing import Annotated, Literal

import msgspec

from expediter.config.health import RetryConfig
from expediter.config.section import Fraction, NotNegative, Positive, Seconds, Section


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


class SloConfig(Section, frozen=True, kw_only=True):
    """What predicted times are weighed with. `gpu_cost` names a regression; its scale is learnt."""

    gpu_cost: str = "llama3-70b-8xh100-sglang"
    decode_weight: NotNegative = 0.05  # a pause in a stream, against a wait for its first token
    congestion_weight: NotNegative = 4.0  # more than 1 because requests come in bursts


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
    "slo",
]


class RoutingConfig(Section, frozen=True, kw_only=True):
    """`load_weight` is lambda and `max_imbalance` epsilon of the cache-aware rule (and the ring's).

    `slack_tokens` is outstanding work that never counts as overload. The `assumed` settings
    bound what is taken to be cached at a worker that publishes no KV events.
    """

    policy: PolicyName = "slo"
    load_weight: NotNegative = 0.0  # matched tokens that one token of load outweighs
    max_imbalance: NotNegative = 0.2
    slack_tokens: Annotated[int, msgspec.Meta(ge=0)] = 1024
    block_size: Positive = 16  # tokens in a block, until a worker's events tell its own
    assumed_blocks: Positive = 65536  # a worker
    assumed_seconds: Seconds = 600.0
    session_header: Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]+$")] = "x-session-id"
    retries: RetryConfig = RetryConfig()
    sticky: StickyConfig = StickyConfig()
    sglang: SglangConfig = SglangConfig()
    dynamo: DynamoConfig = DynamoConfig()
    preble: PrebleConfig = PrebleConfig()
    slo: SloConfig = SloConfig()
