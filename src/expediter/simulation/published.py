"""Cost models that others measured and published, as they published them.

| model | source |
|---|---|
| `FITS` | least squares on grids of NVIDIA's aiconfigurator-core 0.12.0 (`routing/gpu_cost.py`) |
| `DistServeCost` | LLMServe/DistServe at 82831f1, simdistserve/estimators/time_estimator.py |
| `PrebleMistral`, `PREBLE_LLAMA` | WukLab/preble at 8e7906a, exp_configs/model_equations.py |

DistServe has no prefix cache; a chunk after p tokens costs what it adds to the square. Both
leave open how a chunk and decodes share a pass, so that is the rule in `costs.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from expediter.errors import ConfigError
from expediter.routing import gpu_cost
from expediter.routing.gpu_cost import GpuCost
from expediter.scheduling.output import StepWork
from expediter.simulation.costs import MS, QuadraticFit, combined


def _fit(cost: GpuCost) -> QuadraticFit:
    """The regression that routing uses, as the cost of a whole step."""
    return QuadraticFit(
        prefill=(cost.prefill_base, cost.prefill_per_token, cost.prefill_per_pair),
        decode=(cost.step_base, cost.step_per_request, cost.step_per_context_token),
    )


FITS = {
    "llama3-70b-8xh100-sglang": _fit(gpu_cost.LLAMA3_70B_8XH100_SGLANG),
    "llama3-70b-8xh100-vllm": _fit(gpu_cost.LLAMA3_70B_8XH100_VLLM),
    "llama3-70b-4xh100-sglang": _fit(gpu_cost.LLAMA3_70B_4XH100_SGLANG),
    "llama3-70b-8xh200-sglang": _fit(gpu_cost.LLAMA3_70B_8XH200_SGLANG),
    "llama3-70b-8xa100-vllm": _fit(gpu_cost.LLAMA3_70B_8XA100_VLLM),
    "llama2-13b-1xa100-sglang": _fit(gpu_cost.LLAMA2_13B_A100_SGLANG),
    "llama3-8b-1xa100-vllm": _fit(gpu_cost.LLAMA3_8B_A100_VLLM),
    "llama3-8b-1xh100-vllm": _fit(gpu_cost.LLAMA3_8B_H100_VLLM),
}

Coefficients = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistServeCost:
    """prefill = a + b sum n + c sum n^2 + 1, decode = a + b S + c B, in ms, one pipeline stage.

    `large` holds from `threshold` requests on. Both add what Ray takes to start a stage:
    2 ms + 1e-4 ms a token of context.
    """

    prefill: Coefficients
    small: Coefficients
    large: Coefficients
    threshold: int = 95
    stage_ms: float = 1.0
    ray_ms: float = 2.0
    ray_ms_per_token: float = 1e-4

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`; a mixed pass starts once and reads the weights once."""
        shared = self.ray_ms + min(self.prefill[0], self._decode_fit(work)[0])
        return combined(self._prefill_ms(work), self._decode_ms(work), shared=shared) * MS

    def _prefill_ms(self, work: StepWork) -> float:
        if not work.chunks:
            return 0.0
        a, b, c = self.prefill
        total = a + self.stage_ms + self.ray_ms
        for n, p in work.chunks:
            total += b * n + c * n * (n + 2 * p) + self.ray_ms_per_token * (n + p)
        return total

    def _decode_ms(self, work: StepWork) -> float:
        if not work.num_decodes:
            return 0.0
        a, b, c = self._decode_fit(work)
        per_token = b + self.ray_ms_per_token
        return a + self.ray_ms + per_token * work.num_context_tokens + c * work.num_decodes

    def _decode_fit(self, work: StepWork) -> Coefficients:
        return self.large if work.num_decodes >= self.threshold else self.small


def _distserve(prefill: Coefficients, small: Coefficients, large: Coefficients) -> DistServeCost:
    return DistServeCost(prefill=prefill, small=small, large=large)


DISTSERVE = {
    "opt-13b-tp1-distserve": _distserve(
        (18.103, 0.10191, 7.122e-6), (19.935, 6.269e-4, 0.03851), (7.166, 5.798e-4, 0.15831)
    ),
    "opt-13b-tp2-distserve": _distserve(
        (14.743, 0.06858, 2.450e-6), (13.295, 3.411e-4, 0.06296), (10.639, 3.118e-4, 0.08563)
    ),
    "opt-13b-tp4-distserve": _distserve(
        (12.062, 0.03808, 5.226e-7), (10.256, 1.879e-4, 0.03269), (10.484, 1.712e-4, 0.04567)
    ),
    "opt-66b-tp2-distserve": _distserve(
        (43.059, 0.27423, 2.248e-5), (48.288, 9.424e-4, 0.12755), (28.728, 4.745e-4, 0.29618)
    ),
    "opt-66b-tp4-distserve": _distserve(
        (29.442, 0.15135, 8.317e-6), (30.760, 4.519e-4, 0.06328), (27.471, 4.047e-4, 0.12481)
    ),
    "opt-66b-tp8-distserve": _distserve(
        (25.491, 0.10659, 3.391e-6), (23.155, 2.269e-4, 0.04801), (21.718, 3.758e-4, 0.08979)
    ),
    "opt-13b-tp1-vllm": _distserve(
        (22.05, 0.1405, 8.08e-6), (23.48, 5.93e-4, 0.0607), (20.21, 4.91e-4, 0.1200)
    ),
    "opt-66b-tp4-vllm": _distserve(
        (42.97, 0.2129, 4.60e-5), (39.58, 6.95e-4, 0.1358), (40.86, 4.26e-4, 0.1951)
    ),
}
"""A100 80 GB, DistServe's own engine and its baseline's; the profiler's files hold more."""


def load_distserve(path: Path, *, model: str, tensor_parallel: int) -> DistServeCost:
    """The coefficients of one model ("facebook/opt-13b") from a profiler's json file."""
    try:
        fit: dict[str, Any] = msgspec.json.decode(path.read_bytes())[model][str(tensor_parallel)]
        return DistServeCost(
            prefill=tuple(fit["prefill"]),
            small=tuple(fit["decoding_smallbs"]),
            large=tuple(fit["decoding_largebs"]),
            threshold=fit["decoding_large_small_bs_threshold"],
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} has no fit of {model} at TP {tensor_parallel}: {error}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class BilinearFit:
    """a + b N + c s + d (sum of n s over requests), in ms: Preble's form for Llama-3-70B.

    N is the new tokens of a pass and s a request's whole length; a decode has one new token.
    """

    a: float
    per_new_token: float
    per_token: float
    per_pair: float

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`; one formula for both kinds, so a mixed pass needs no rule."""
        if not work.chunks and not work.num_decodes:
            return 0.0
        length = work.num_context_tokens + work.num_decodes
        total = self.a + self.per_new_token * work.num_decodes
        total += (self.per_token + self.per_pair) * length
        for n, p in work.chunks:
            total += self.per_new_token * n + (self.per_token + self.per_pair * n) * (n + p)
        return total * MS


PREBLE_LLAMA = {
    "llama3-70b-2xa100-preble": BilinearFit(
        a=28.93, per_new_token=0.1822, per_token=4.00e-3, per_pair=2.55e-6
    ),
    "llama3-70b-2xh100-preble": BilinearFit(
        a=18.67, per_new_token=0.0799, per_token=2.685e-3, per_pair=7.44e-7
    ),
}


@dataclass(frozen=True, slots=True)
class PrebleMistral:
    """Mistral-7B on an A6000: the pass's linear layers by its tokens, attention by its context.

    Linear, ms: 22 below 192 tokens; -118 + 1.25 N - 0.00256 N^2 below 384; 0.10843 N + 4.21.
    Attention: 0.32 up to 1,024 tokens of context, then 1.86e-4 s + 0.159. A chunk n of a prompt
    of s tokens with n s above 2^20 adds 1.13e-3 n + 1.75e-3 s + 2.19e-6 n s. All over 0.9.
    """

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`; one formula for both kinds, so a mixed pass needs no rule."""
        num_tokens = work.num_prompt_tokens + work.num_decodes
        if num_tokens == 0:
            return 0.0
        context = work.num_context_tokens + sum(n + p for n, p in work.chunks)
        extends = (_mistral_extend(n, n + p) for n, p in work.chunks)
        total = _mistral_linear(num_tokens) + _mistral_attention(context) + sum(extends)
        return total / 0.9 * MS


def _mistral_linear(num_tokens: int) -> float:
    if num_tokens < 192:
        return 22.0
    if num_tokens < 384:
        return -118 + 1.25 * num_tokens - 0.00256 * num_tokens**2
    return 0.10843 * num_tokens + 4.21


def _mistral_attention(context: int) -> float:
    return 0.32 if context <= 1024 else 1.86e-4 * context + 0.159


def _mistral_extend(n: int, s: int) -> float:
    return 1.13e-3 * n + 1.75e-3 * s + 2.19e-6 * n * s if n * s > 2**20 else 0.0
