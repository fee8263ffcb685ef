"""Settings of prefill and decode on different workers: when to split, and how KV is handed over."""

from typing import Annotated, Literal

import msgspec

from expediter.config.section import NotNegative, Seconds, Section


class RebalanceConfig(Section, frozen=True, kw_only=True):
    """When a worker that may play both roles changes from one to the other.

    A role is short of workers while its pressure is `ratio` times the other's for `hold_seconds`.
    """

    enabled: bool = False
    interval_seconds: Seconds = 2.0  # between two looks
    hold_seconds: Seconds = 10.0  # how long the imbalance must last
    pause_seconds: Seconds = 60.0  # after a change, until the next
    drain_seconds: Seconds = 60.0  # what running requests may take before a change
    ratio: Annotated[float, msgspec.Meta(gt=1)] = 2.0
    slack_tokens: NotNegative = 2048.0  # of work a worker, which is never pressure
    mixed_pool: bool = False  # a worker takes both on before it changes for good


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
    transfer_seconds_per_token: NotNegative = 13e-6  # a 70B model's 320 KB at 25 GB/s; is learnt
    gpu_cost: str = "llama3-70b-8xh100-sglang"
