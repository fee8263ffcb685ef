"""When requests come: one stream of gaps, bent by a rate that changes over time.

Gaps have mean 1. The n-th arrival is at the time by which the rate adds up to the sum of the
first n gaps. With exponential gaps that is a Poisson process of just that rate; other gaps make
it more even or more bursty, whatever the rate does.
"""

import math
import random
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from expediter.config import NotNegative, Seconds, Section
from expediter.workload.distributions import AboveZero


class Piece(NamedTuple):
    """A rate that goes straight from `start` to `end`, in requests a second."""

    seconds: float
    start: float
    end: float

    @property
    def num_arrivals(self) -> float:
        """What the rate adds up to."""
        mean = (self.start + self.end) / 2
        return mean * self.seconds if mean else 0.0

    def time_of(self, num_arrivals: float) -> float:
        """When the rate has added up to so much."""
        slope = (self.end - self.start) / self.seconds
        # Of the usual solutions of a quadratic the one that does not cancel, nor divide by slope.
        root = math.sqrt(max(0.0, self.start**2 + 2 * slope * num_arrivals))
        return 2 * num_arrivals / (self.start + root) if num_arrivals else 0.0


class Steady(Section, frozen=True, tag="steady"):
    """Always the same rate."""

    rate: AboveZero  # requests a second

    def pieces(self, rng: random.Random) -> Iterator[Piece]:  # noqa: ARG002
        """The rate over time."""
        yield Piece(math.inf, self.rate, self.rate)


class Ramp(Section, frozen=True, tag="ramp"):
    """Straight lines between points of (seconds, rate); arrivals end with the last point.

    Two points at the same time make a step.
    """

    points: Annotated[tuple[tuple[NotNegative, NotNegative], ...], msgspec.Meta(min_length=2)]

    def pieces(self, rng: random.Random) -> Iterator[Piece]:  # noqa: ARG002
        """The rate over time."""
        first = self.points[0][0]
        if first > 0:
            yield Piece(first, 0.0, 0.0)
        for (begin, start), (finish, end) in zip(self.points, self.points[1:], strict=False):
            if finish < begin:
                raise ValueError(f"points of a ramp go back in time: {begin:g} to {finish:g}")
            if finish > begin:
                yield Piece(finish - begin, start, end)


class Bursts(Section, frozen=True, kw_only=True, tag="bursts"):
    """Two rates that take turns, each for a random time: a two-state Markov-modulated process.

    `off_rate` 0 makes pure on and off.
    """

    on_rate: AboveZero
    off_rate: NotNegative = 0.0
    on_seconds: Seconds  # mean
    off_seconds: Seconds  # mean

    def pieces(self, rng: random.Random) -> Iterator[Piece]:
        """The rate over time."""
        while True:
            yield Piece(rng.expovariate(1 / self.on_seconds), self.on_rate, self.on_rate)
            yield Piece(rng.expovariate(1 / self.off_seconds), self.off_rate, self.off_rate)


Profile = Steady | Ramp | Bursts


class Arrivals(Section, frozen=True):
    """Gaps of the coefficient of variation `cv` under the rate of `profile`.

    1 is Poisson, 0 a clock's tick, anything else Gamma.
    """

    profile: Profile
    cv: NotNegative = 1.0

    def times(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start, rising; endless unless the profile ends."""
        gaps = self._gaps(rng)
        begin = 0.0
        wait = next(gaps)
        for piece in self.profile.pieces(rng):
            sum_before = 0.0
            while sum_before + wait <= piece.num_arrivals:
                sum_before += wait
                yield begin + piece.time_of(sum_before)
                wait = next(gaps)
            wait -= piece.num_arrivals - sum_before
            begin += piece.seconds

    def _gaps(self, rng: random.Random) -> Iterator[float]:
        if self.cv == 0:
            while True:
                yield 1.0
        if self.cv == 1:
            while True:
                yield rng.expovariate(1.0)
        shape = self.cv**-2
        while True:
            yield rng.gammavariate(shape, 1 / shape)


def poisson(rate: float) -> Arrivals:
    """Requests that do not know of each other."""
    return Arrivals(Steady(rate))


def gamma(rate: float, *, cv: float) -> Arrivals:
    """Burstier than Poisson for `cv` above 1, more even below."""
    return Arrivals(Steady(rate), cv)


def even(rate: float) -> Arrivals:
    """One every 1 / rate seconds."""
    return Arrivals(Steady(rate), 0.0)
