"""Seconds of GPU time from token counts: the regressions that Preble's costs are made of.

    PT(n, p) = max(floor, a + b n + c n (p + n / 2))     n tokens to compute after p cached ones
    DT(n)    = n (d + e B + f S) / B                     n output tokens, each a share of a step

A decode step costs d + e B + f S milliseconds for B requests with S tokens of context in all;
one request's share is taken at a typical batch. PT(0) is 0.

The fits hold from 256 new tokens up and are too low below, exactly where hits put a request;
`floor` is what the measured grid has at 64 tokens where the line is lower.
"""

from dataclasses import dataclass

_SECONDS = 1e-3  # all coefficients are milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCost:
    """One model on one kind of GPU. Coefficients are milliseconds."""

    prefill_base: float  # a
    prefill_per_token: float  # b
    prefill_per_pair: float = 0.0  # c: one token attending to one other
    prefill_floor: float = 0.0
    step_base: float  # d
    step_per_request: float  # e
    step_per_context_token: float = 0.0  # f
    typical_batch: int = 32  # B
    typical_context: int = 2048  # S / B

    def prefill_seconds(self, num_new: int, num_cached: int = 0) -> float:
        """PT: to compute `num_new` tokens on top of `num_cached`."""
        if num_new <= 0:
            return 0.0
        line = self.prefill_base + self.prefill_per_token * num_new
        pairs = self.prefill_per_pair * num_new * (num_cached + num_new / 2)
        return max(self.prefill_floor, line + pairs) * _SECONDS

    def decode_seconds(self, num_output: float) -> float:
        """DT: one request's share of the steps that generate its `num_output` tokens."""
        shared = self.step_base / self.typical_batch
        own = self.step_per_request + self.step_per_context_token * self.typical_context
        return num_output * (shared + own) * _SECONDS


WORKED_EXAMPLE = GpuCost(
    prefill_base=0.0, prefill_per_token=0.1, step_base=20.0, step_per_request=0.2
)
"""A 70B model in round numbers: 0.1 ms a prompt token, 20 ms a step and 0.2 ms a request."""

# Fits to NVIDIA's aiconfigurator-core 0.12.0 (Apache-2.0), whose tables are measured; mean error
# of the prefill fits 1 to 6 %, of the decode fits 1 to 5 %.
LLAMA3_70B_8XH100_SGLANG = GpuCost(
    prefill_base=7.15,
    prefill_per_token=0.04051,
    prefill_per_pair=4.716e-7,
    prefill_floor=12.6,
    step_base=9.52,
    step_per_request=0.0274,
    step_per_context_token=1.397e-5,
)
LLAMA3_70B_8XH100_VLLM = GpuCost(
    prefill_base=6.38,
    prefill_per_token=0.03867,
    prefill_per_pair=4.689e-7,
    step_base=9.93,
    step_per_request=0.0266,
    step_per_context_token=1.365e-5,
)
LLAMA3_70B_4XH100_SGLANG = GpuCost(
    prefill_base=6.01,
    prefill_per_token=0.06365,
    prefill_per_pair=1.001e-6,
    prefill_floor=19.0,
    step_base=15.13,
    step_per_request=0.0306,
    step_per_context_token=2.824e-5,
)
LLAMA3_70B_8XH200_SGLANG = GpuCost(
    prefill_base=7.56,
    prefill_per_token=0.03936,
    prefill_per_pair=4.589e-7,
    step_base=7.88,
    step_per_request=0.0305,
    step_per_context_token=9.638e-6,
)
LLAMA3_70B_8XA100_VLLM = GpuCost(
    prefill_base=14.50,
    prefill_per_token=0.09948,
    prefill_per_pair=1.704e-6,
    step_base=17.37,
    step_per_request=0.0715,
    step_per_context_token=2.708e-5,
)
LLAMA2_13B_A100_SGLANG = GpuCost(
    prefill_base=11.47,
    prefill_per_token=0.10325,
    prefill_per_pair=4.141e-6,
    prefill_floor=19.9,
    step_base=18.94,
    step_per_request=0.0403,
    step_per_context_token=8.165e-4,
)
LLAMA3_8B_A100_VLLM = GpuCost(
    prefill_base=8.04,
    prefill_per_token=0.05468,
    prefill_per_pair=2.957e-6,
    step_base=11.55,
    step_per_request=0.0370,
    step_per_context_token=8.024e-5,
)
LLAMA3_8B_H100_VLLM = GpuCost(
    prefill_base=2.86,
    prefill_per_token=0.01937,
    prefill_per_pair=7.926e-7,
    step_base=6.39,
    step_per_request=0.0098,
    step_per_context_token=4.337e-5,
)

MISTRAL_7B_A6000 = GpuCost(
    prefill_base=4.21 / 0.9,
    prefill_per_token=0.10843 / 0.9,
    prefill_floor=22 / 0.9,
    step_base=22 / 0.9,
    step_per_request=0.10843 / 0.9,
    step_per_context_token=1.86e-4 / 0.9,
)
"""Preble's own fit (benchmarks/exp_configs/model_equations.py): its line from 384 tokens up, its
constant below 192 as floor and as the step, its attention term by context. The piece between is
left out; the line and the floor meet within it."""

NAMED_COSTS: dict[str, GpuCost] = {
    "worked-example": WORKED_EXAMPLE,
    "llama3-70b-8xh100-sglang": LLAMA3_70B_8XH100_SGLANG,
    "llama3-70b-8xh100-vllm": LLAMA3_70B_8XH100_VLLM,
    "llama3-70b-4xh100-sglang": LLAMA3_70B_4XH100_SGLANG,
    "llama3-70b-8xh200-sglang": LLAMA3_70B_8XH200_SGLANG,
    "llama3-70b-8xa100-vllm": LLAMA3_70B_8XA100_VLLM,
    "llama2-13b-a100-sglang": LLAMA2_13B_A100_SGLANG,
    "llama3-8b-a100-vllm": LLAMA3_8B_A100_VLLM,
    "llama3-8b-h100-vllm": LLAMA3_8B_H100_VLLM,
    "mistral-7b-a6000": MISTRAL_7B_A6000,
}
