"""Rotary frequencies against each recipe's formula, one dimension at a time."""

import math

import pytest
import torch

from expediter.engine.architecture import ModelConfig, RopeConfig
from expediter.engine.rope import Rope, inverse_frequencies, longest_context, rotate_in_place

SIZE = 64
THETA = 10000.0
PLAIN = [THETA ** (-2 * i / SIZE) for i in range(SIZE // 2)]


def model(**rope: object) -> ModelConfig:
    return ModelConfig(
        name="m",
        vocab_size=8,
        hidden_size=SIZE,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=SIZE,
        max_position=2048,
        rms_eps=1e-5,
        tied_embeddings=True,
        rope=RopeConfig(theta=THETA, **rope),  # type: ignore[arg-type]
    )


def frequencies(config: ModelConfig, max_model_len: int = 2048) -> list[float]:
    found, _ = inverse_frequencies(config, max_model_len=max_model_len)
    return found.tolist()


def test_default_and_linear() -> None:
    assert frequencies(model()) == pytest.approx(PLAIN)
    assert frequencies(model(kind="linear", factor=4.0)) == pytest.approx([f / 4 for f in PLAIN])


def test_divisors_divide_one_by_one() -> None:
    divisors = tuple(1.0 + i for i in range(SIZE // 2))
    expected = [f / d for f, d in zip(PLAIN, divisors, strict=True)]
    assert frequencies(model(divisors=divisors)) == pytest.approx(expected)


def test_dynamic_is_plain_until_the_context_is_stretched() -> None:
    config = model(kind="dynamic", factor=2.0)
    assert frequencies(config) == pytest.approx(PLAIN)
    theta = THETA * (2 * 4096 / 2048 - 1) ** (SIZE / (SIZE - 2))
    expected = [theta ** (-2 * i / SIZE) for i in range(SIZE // 2)]
    assert frequencies(config, max_model_len=4096) == pytest.approx(expected)
    assert longest_context(config) == 4096


def test_llama3_slows_long_waves_and_keeps_short_ones() -> None:
    found = frequencies(model(kind="llama3", factor=8.0, original_max_position=1024))
    for plain, scaled in zip(PLAIN, found, strict=True):
        wavelength = 2 * math.pi / plain
        if wavelength < 1024 / 4:
            assert scaled == pytest.approx(plain)
        elif wavelength > 1024 / 1:
            assert scaled == pytest.approx(plain / 8)
        else:
            smooth = (1024 / wavelength - 1) / (4 - 1)
            assert scaled == pytest.approx((1 - smooth) * plain / 8 + smooth * plain)


def test_yarn_interpolates_by_turns_and_raises_the_amplitude() -> None:
    config = model(kind="yarn", factor=4.0, original_max_position=1024)
    found, amplitude = inverse_frequencies(config, max_model_len=4096)
    assert amplitude == pytest.approx(0.1 * math.log(4) + 1)
    assert longest_context(config) == 4096

    def pair(turns: float) -> float:
        return SIZE * math.log(1024 / (turns * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = math.floor(pair(32)), math.ceil(pair(1))
    for i, (plain, scaled) in enumerate(zip(PLAIN, found.tolist(), strict=True)):
        kept = 1 - min(max((i - low) / (high - low), 0), 1)
        assert scaled == pytest.approx(plain / 4 * (1 - kept) + plain * kept)


def test_rotation_turns_pairs_as_complex_numbers() -> None:
    rope = Rope(model(), max_model_len=2048, device=torch.device("cpu"))
    positions = torch.tensor([0, 1, 77, 2047])
    heads = torch.randn(4, 3, SIZE)
    half = SIZE // 2
    pairs = torch.complex(heads[..., :half], heads[..., half:])
    angles = positions[:, None, None] * torch.tensor(PLAIN)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    rotate_in_place(heads, *rope.tables(positions, torch.float32))
    torch.testing.assert_close(heads, torch.cat([turned.real, turned.imag], -1), atol=1e-4, rtol=0)
