"""Rotary position embedding (Su et al. 2021) and its context-extension variants.

Each pair of a head's dimensions turns by position x frequency. Every variant only changes
the frequencies, once, so rotated keys in the cache stay valid whatever comes after them.
"""

import math

import torch

from expediter.engine.architecture import ModelConfig, RopeConfig
from expediter.errors import ModelLoadError

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosine and signed sine, [tokens, 1, head size]


class Rope:
    """Cosines and sines for any position of one model."""

    def __init__(self, config: ModelConfig, *, max_model_len: int, device: torch.device) -> None:
        frequencies, self._amplitude = inverse_frequencies(config, max_model_len=max_model_len)
        self._frequencies = torch.cat([frequencies, frequencies]).to(device)
        self._signs = torch.ones_like(self._frequencies)
        self._signs[: frequencies.numel()] = -1

    def tables(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """What turns a head at each of the positions."""
        angles = positions.to(torch.float32)[:, None, None] * self._frequencies
        cosine = angles.cos() * self._amplitude
        sine = angles.sin() * (self._signs * self._amplitude)
        return cosine.to(dtype), sine.to(dtype)


def rotate_in_place(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Turn [tokens, heads, head size] by its positions; dimension i pairs with i + half."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    torch.addcmul(heads * cosine, swapped, sine, out=heads)


def inverse_frequencies(config: ModelConfig, *, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Radians a position for each pair of dimensions, and the factor on cosine and sine."""
    rope = config.rope
    if rope.kind == "dynamic":
        theta = _dynamic_theta(config, max_model_len)
        return _plain(theta, config.head_size), 1.0
    plain = _plain(rope.theta, config.head_size)
    if rope.divisors is not None:
        if len(rope.divisors) != plain.numel():
            raise ModelLoadError(
                f"{config.name}: {len(rope.divisors)} rope divisors for {plain.numel()} pairs"
            )
        return plain / torch.tensor(rope.divisors), 1.0
    match rope.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / rope.factor, 1.0
        case "llama3":
            return _llama3(plain, rope, rope.original_max_position or config.max_position), 1.0
        case "yarn":
            return _yarn(plain, config)


def longest_context(config: ModelConfig) -> int:
    """The most tokens the model may be asked to hold, scaling included."""
    rope = config.rope
    if rope.kind == "dynamic":
        return int(config.max_position * rope.factor)
    if rope.kind == "yarn" and rope.original_max_position:
        return max(config.max_position, int(rope.original_max_position * rope.factor))
    return config.max_position


def _plain(theta: float, head_size: int) -> torch.Tensor:
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    return 1.0 / theta**exponents


def _dynamic_theta(config: ModelConfig, max_model_len: int) -> float:
    """NTK-aware base for `max_model_len` tokens: theta * (f L / L0 - (f - 1)) ^ (d / (d - 2)).

    The original recipe grows the base as the text grows, which would invalidate cached keys;
    here it is fixed for the longest text allowed, and plain while that fits the model.
    """
    rope, size = config.rope, config.head_size
    length = max(max_model_len, config.max_position)
    stretch = rope.factor * length / config.max_position - (rope.factor - 1)
    return float(rope.theta * stretch ** (size / (size - 2)))


def _llama3(plain: torch.Tensor, rope: RopeConfig, original: int) -> torch.Tensor:
    """Llama 3.1: long waves slow down by `factor`, short ones stay, those between blend."""
    turns = original * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return plain * ((1 - blend) / rope.factor + blend)


def _yarn(plain: torch.Tensor, config: ModelConfig) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023, section 3): interpolate only pairs that turn too rarely."""
    rope = config.rope
    original = rope.original_max_position or config.max_position

    def pair_that_turns(turns: float) -> float:
        return (
            config.head_size
            * math.log(original / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low = max(math.floor(pair_that_turns(rope.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(rope.beta_slow)), config.head_size - 1)
    ramp = (torch.arange(plain.numel(), dtype=torch.float32) - low) / max(high - low, 0.001)
    ramp = ramp.clamp(0, 1)
    amplitude = rope.attention_factor
    if amplitude is None:
        amplitude = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
    return plain * (ramp / rope.factor + 1 - ramp), amplitude
