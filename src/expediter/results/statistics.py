"""What many latencies come to, with how sure one may be of it.

Requests of one run are not independent: a burst makes all of them late. So confidence intervals
come from batch means (Law, "Simulation Modeling and Analysis", section 9.5.3): the run is cut
into ten equal parts in order of arrival, and the statistic's spread over the parts tells how far
it strays, by Student's t with nine degrees of freedom.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

QUANTILES = (50, 90, 95, 99)
NUM_BATCHES = 10
STUDENT_T = 2.262
"""97.5 % quantile for nine degrees of freedom."""

MIN_BATCH = 20
"""Fewer values a part, and there is no interval."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A value, and half the width of its 95 % confidence interval if the run is long enough."""

    value: float
    plus_minus: float | None = None


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and percentiles of `count` values."""

    count: int
    mean: Estimate
    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate


def distribution(values: Sequence[float]) -> Distribution | None:
    """The distribution of values in order of arrival; None for no values."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    whole = np.percentile(array, QUANTILES)
    parts = _parts(array)
    if parts is None:
        estimates = [Estimate(value=float(value)) for value in whole]
        mean = Estimate(value=float(array.mean()))
    else:
        spread = _spread(np.percentile(parts, QUANTILES, axis=1))
        estimates = [
            Estimate(value=float(value), plus_minus=float(s))
            for value, s in zip(whole, spread, strict=True)
        ]
        mean = _mean(array, parts)
    p50, p90, p95, p99 = estimates
    return Distribution(count=len(array), mean=mean, p50=p50, p90=p90, p95=p95, p99=p99)


def mean(values: Sequence[float]) -> Estimate | None:
    """The mean of values in order of arrival; None for no values."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    return _mean(array, _parts(array))


def jains_index(values: Sequence[float]) -> float:
    """(sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _mean(array: Seconds, parts: Seconds | None) -> Estimate:
    plus_minus = None if parts is None else float(_spread(parts.mean(axis=1)))
    return Estimate(value=float(array.mean()), plus_minus=plus_minus)


def _parts(array: Seconds) -> Seconds | None:
    size = len(array) // NUM_BATCHES
    return array[: size * NUM_BATCHES].reshape(NUM_BATCHES, size) if size >= MIN_BATCH else None


def _spread(of_parts: Seconds) -> Seconds:
    spread: Seconds = STUDENT_T * of_parts.std(axis=-1, ddof=1) / np.sqrt(NUM_BATCHES)
    return spread
