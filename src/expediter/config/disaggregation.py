"""Settings of prefill and decode on different workers: when to split, and how KV is handed over."""

from typing import Annotated, Literal

import msgspec

from expediter.config.section import NotNegative, Positive, Seconds, Section


class RebalanceConfig(Section, frozen=True, kw_only=True):
    """When a worker changes from one role to the other; `cluster/roles.py` has the arithmetic."""

    enabled: bool = False
    interval_seconds: Seconds = 2.0  # between two looks
    hold_seconds: Seconds = 10.0  # how long the imbalance must last
    pause_seconds: Seconds = 60.0  # after a change, until the next
    drain_seconds: Seconds = 60.0  # what running requests may take before a change
    ratio: Annotated[float, msgspec.Meta(ge=1.25)] = 2.0  # of pressures, for a role to be short
    prefill_slack_tokens: Positive = 8192  # queued at a prefill worker: a pressure of 1
    decode_slack_requests: Positive = 32  # running at a decode worker: a pressure of 1
    mixed_pool: bool = False  # a worker takes both roles on instead of changing


class DisaggregationConfig(Section, frozen=True, kw_only=True):
    """Used where the fleet has prefill and decode workers.

    `split` is "predicted" or "always": both keep prompts with fewer than `min_uncached_tokens`
    left to compute on the decode worker. `gpu_cost` names the regression that predicts.
    """

    handover: Literal["auto", "vllm", "expediter", "sglang"] = "auto"
    split: Literal["predicted", "always"] = "predicted"
    min_uncached_tokens: Annotated[int, msgspec.Meta(ge=0)] = 256
    lease_seconds: Seconds = 30.0  # how long a prefill worker keeps what nobody has fetched
    decode_weight: NotNegative = 0.5  # a pause in a stream, against a wait for the first token
    transfer_seconds_per_token: NotNegative = 13e-6  # a 70B model's 320 KB at 25 GB/s
    gpu_cost: str = "llama3-70b-8xh100-sglang"
    rebalance: RebalanceConfig = RebalanceConfig()
