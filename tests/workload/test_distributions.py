"""Lengths and popularity have the statistics they are called by."""

import random
import statistics
from collections import Counter
from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.workload.distributions import (
    Constant,
    Deck,
    Distribution,
    Exponential,
    Lognormal,
    Normal,
    Popularity,
    Uniform,
    Zipf,
    num_tokens,
)


@pytest.mark.parametrize(
    ("length", "mean", "sd"),
    [
        (Constant(7), 7, 0),
        (Uniform(10, 22), 16, 12 / 12**0.5),
        (Exponential(30), 30, 30),
        (Normal(100, 10), 100, 10),
        (Lognormal(1835, 742), 1835, 742),
    ],
)
def test_draws_have_the_mean_and_deviation(length: Distribution, mean: float, sd: float) -> None:
    rng = random.Random(5)
    values = [length.draw(rng) for _ in range(40_000)]
    assert statistics.fmean(values) == pytest.approx(mean, rel=0.03)
    assert statistics.pstdev(values) == pytest.approx(sd, rel=0.05)


@given(st.floats(0.001, 1000) | st.just(0.0), st.floats(0, 1000), st.integers())
def test_lengths_are_whole_and_at_least_one(mean: float, sd: float, seed: int) -> None:
    for length in (Lognormal(mean, sd), Normal(mean, sd), Exponential(mean)):
        assert num_tokens(length, random.Random(seed)) >= 1


def test_zipf_draws_fall_with_the_rank_to_the_exponent() -> None:
    counts = Counter(islice(Zipf(50, 1.1).draws(random.Random(2)), 200_000))
    total = sum((i + 1) ** -1.1 for i in range(50))
    for item in (0, 1, 4, 20, 49):
        share = (item + 1) ** -1.1 / total
        assert counts[item] / 200_000 == pytest.approx(share, rel=0.1)
    assert set(counts) == set(range(50))


def test_zipf_of_exponent_zero_is_even() -> None:
    counts = Counter(islice(Zipf(10, 0.0).draws(random.Random(2)), 50_000))
    assert max(counts.values()) / min(counts.values()) < 1.15


def test_a_deck_asks_for_each_item_as_often_as_it_says_then_brings_new_ones() -> None:
    draws = Deck(20, 5).draws(random.Random(1))
    first, second = list(islice(draws, 100)), list(islice(draws, 100))
    assert Counter(first) == dict.fromkeys(range(20), 5)
    assert Counter(second) == dict.fromkeys(range(20, 40), 5)
    assert first != sorted(first)


@pytest.mark.parametrize(("mean", "sd"), [(39, 64), (48, 8), (8.6, 2), (18, 8.6)])
def test_a_deck_has_the_mean_and_deviation_of_its_requests_an_item(mean: float, sd: float) -> None:
    counts = Deck(400, mean, sd).times()
    assert statistics.fmean(counts) == pytest.approx(mean, rel=0.03)
    assert statistics.pstdev(counts) == pytest.approx(sd, rel=0.15)


@pytest.mark.parametrize("popularity", [Zipf(7), Deck(7, 3, 1)])
def test_settings_survive_a_file(popularity: Popularity) -> None:
    data = msgspec.json.encode(popularity)
    assert msgspec.json.decode(data, type=Popularity) == popularity
