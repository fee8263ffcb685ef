"""Lengths of the three workloads of DistServe's evaluation, against what is quoted for them."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.workload.catalog import named_workload
from expediter.workload.distributions import Lognormal


@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    [("sharegpt", 755.5, 200.3), ("humaneval", 171.3, 98.2), ("longbench", 1738.3, 90.7)],
)
def test_lengths_have_the_quoted_means(name: str, prompt: float, answer: float) -> None:
    turns = list(named_workload(name, rate=1.0, num_requests=20_000, seed=1))
    assert mean(turn.num_prompt_tokens for turn in turns) == pytest.approx(prompt, rel=0.05)
    assert mean(turn.num_output_tokens for turn in turns) == pytest.approx(answer, rel=0.05)


@given(mean=st.floats(1, 1e4), ratio=st.floats(1, 3), seed=st.integers())
def test_a_cut_lognormal_never_passes_its_cut(mean: float, ratio: float, seed: int) -> None:
    cut = Lognormal(mean, mean, maximum=ratio * mean)
    rng = random.Random(seed)
    assert all(cut.draw(rng) <= ratio * mean for _ in range(50))


def test_a_cut_below_the_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="maximum 5 is below the mean, 10"):
        Lognormal(10, 1, maximum=5)
