"""The regressions against the points they were fitted to."""

import pytest

from expediter.routing.gpu_cost import (
    LLAMA3_70B_8XH100_SGLANG,
    MISTRAL_7B_A6000,
    NAMED_COSTS,
    WORKED_EXAMPLE,
)

MS = 1e-3


def test_the_worked_example_in_seconds() -> None:
    """0.1 ms a prompt token; a step of 32 requests is 20 + 6.4 ms, so 0.825 ms each."""
    assert WORKED_EXAMPLE.prefill_seconds(1000) == pytest.approx(0.1)
    assert WORKED_EXAMPLE.decode_seconds(100) == pytest.approx(0.0825)
    assert WORKED_EXAMPLE.prefill_seconds(0, 5000) == 0.0


@pytest.mark.parametrize(
    ("num_new", "num_cached", "milliseconds"),
    [(512, 0, 28.9), (2048, 0, 93.1), (8192, 0, 345.0), (32768, 0, 1573.0), (1024, 7168, 54.1)],
)
def test_the_h100_regression_meets_the_measured_points(
    num_new: int, num_cached: int, milliseconds: float
) -> None:
    seconds = LLAMA3_70B_8XH100_SGLANG.prefill_seconds(num_new, num_cached)
    assert seconds * 1000 == pytest.approx(milliseconds, rel=0.05)


def test_prebles_own_regression() -> None:
    """0.10843 n + 4.21 ms from 384 tokens up, 22 ms for few, all over 0.9."""
    assert MISTRAL_7B_A6000.prefill_seconds(1000) == pytest.approx((108.43 + 4.21) / 0.9 * MS)
    assert MISTRAL_7B_A6000.prefill_seconds(50) == pytest.approx(22 / 0.9 * MS)


@pytest.mark.parametrize("name", NAMED_COSTS)
def test_costs_never_fall(name: str) -> None:
    cost = NAMED_COSTS[name]
    seconds = [cost.prefill_seconds(n) for n in (0, 1, 64, 256, 1024, 8192, 40000)]
    assert seconds == sorted(seconds)
    assert cost.prefill_seconds(1024, 8192) >= cost.prefill_seconds(1024)
    assert 0 < cost.decode_seconds(1) < cost.decode_seconds(2)
