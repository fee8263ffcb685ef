"""Arrival processes: exact where chance is off, statistics where it is on."""

import math
import random
import statistics
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.workload.arrivals import Arrivals, Bursts, Piece, Ramp, Steady, even, gamma, poisson

RATES = st.floats(0.0, 50.0)
POINTS = st.lists(st.tuples(st.floats(0.0, 20.0), RATES), min_size=1, max_size=5)
PROFILES = st.one_of(
    st.builds(Steady, st.floats(0.1, 100.0)),
    POINTS.map(lambda points: Ramp(tuple(sorted(points, key=lambda point: point[0])))),
    st.builds(
        Bursts,
        on_rate=st.floats(1.0, 50.0),
        off_rate=RATES,
        on_seconds=st.floats(0.1, 10.0),
        off_seconds=st.floats(0.1, 10.0),
    ),
)
ARRIVALS = st.builds(Arrivals, PROFILES, st.sampled_from([0.0, 0.5, 1.0, 4.0]))


@given(ARRIVALS, st.integers())
def test_times_rise_and_a_seed_gives_them_again(arrivals: Arrivals, seed: int) -> None:
    one = list(islice(arrivals.times(random.Random(seed)), 200))
    assert one == list(islice(arrivals.times(random.Random(seed)), 200))
    assert one == sorted(one)
    assert all(time >= 0 and math.isfinite(time) for time in one)


@given(st.floats(0.1, 100.0), st.floats(0.01, 50.0), RATES, st.floats(0.0, 1.0))
def test_the_time_of_a_count_is_where_the_rate_adds_up_to_it(
    seconds: float, start: float, end: float, share: float
) -> None:
    piece = Piece(seconds, start, end)
    time = piece.time_of(share * piece.num_arrivals)
    slope = (end - start) / seconds
    added = start * time + slope * time**2 / 2
    assert added == pytest.approx(share * piece.num_arrivals, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_variation_asked_for(cv: float) -> None:
    times = list(islice(gamma(4.0, cv=cv).times(random.Random(7)), 40_000))
    gaps = [late - early for early, late in pairwise(times)]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(gaps) / mean == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_even_arrivals_tick() -> None:
    assert list(islice(even(4.0).times(random.Random(1)), 3)) == pytest.approx([0.25, 0.5, 0.75])


def test_a_ramp_bends_even_arrivals_into_roots() -> None:
    """From 0 to 2 a second in 10 s: t^2 / 10 arrivals by t, 10 in all."""
    ramp = Arrivals(Ramp(((0.0, 0.0), (10.0, 2.0))), 0.0)
    times = list(ramp.times(random.Random(1)))
    assert times == pytest.approx([math.sqrt(10 * n) for n in range(1, 11)])


def test_a_step_and_a_pause_change_the_rate_at_once() -> None:
    steps = Ramp(((0.0, 1.0), (2.0, 1.0), (2.0, 0.0), (5.0, 0.0), (5.0, 2.0), (6.0, 2.0)))
    times = list(Arrivals(steps, 0.0).times(random.Random(1)))
    assert times == pytest.approx([1.0, 2.0, 5.5, 6.0])


def test_a_ramp_that_goes_back_is_refused() -> None:
    back = Arrivals(Ramp(((0.0, 1.0), (2.0, 1.0), (1.0, 1.0))))
    with pytest.raises(ValueError, match="go back in time: 2 to 1"):
        list(back.times(random.Random(1)))


def test_bursts_come_at_the_mean_of_both_rates_and_far_from_evenly() -> None:
    """On 1 s at 30/s, off 2 s at 3/s: 12/s."""
    bursts = Arrivals(Bursts(on_rate=30.0, off_rate=3.0, on_seconds=1.0, off_seconds=2.0))
    times = list(takewhile(lambda time: time < 4000, bursts.times(random.Random(3))))
    assert len(times) / 4000 == pytest.approx(12, rel=0.05)
    counts = [0] * 4000
    for time in times:
        counts[int(time)] += 1
    # A Poisson process has as much variance as mean.
    assert statistics.pvariance(counts) > 5 * statistics.fmean(counts)


def test_arrivals_are_made_when_asked_for() -> None:
    assert next(islice(poisson(1000.0).times(random.Random(1)), 100_000, None)) > 90
