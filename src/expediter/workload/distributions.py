"""How long things are and how often they are asked for, as settings that draw from a generator.

Lengths are real numbers here; `num_tokens` rounds them.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from statistics import NormalDist
from typing import Annotated

import msgspec

from expediter.config import NotNegative, Positive, Section

AboveZero = Annotated[float, msgspec.Meta(gt=0)]


class Constant(Section, frozen=True, tag="constant"):
    """Always `value`."""

    value: NotNegative

    def draw(self, rng: random.Random) -> float:  # noqa: ARG002
        """The next value."""
        return self.value


class Uniform(Section, frozen=True, tag="uniform"):
    """Anything from `low` to `high`."""

    low: NotNegative
    high: NotNegative

    def draw(self, rng: random.Random) -> float:
        """The next value."""
        return rng.uniform(self.low, self.high)


class Exponential(Section, frozen=True, tag="exponential"):
    """Times between events that do not know of each other."""

    mean: NotNegative

    def draw(self, rng: random.Random) -> float:
        """The next value."""
        return rng.expovariate(1.0) * self.mean


class Normal(Section, frozen=True, tag="normal"):
    """A bell of `mean` and `sd`; what falls below zero counts as zero."""

    mean: NotNegative
    sd: NotNegative

    def draw(self, rng: random.Random) -> float:
        """The next value."""
        return max(0.0, rng.gauss(self.mean, self.sd))


class Lognormal(Section, frozen=True, tag="lognormal"):
    """Positive and skewed, as lengths of texts are; `mean` and `sd` are those of the values.

    What is above `maximum` is drawn again, so both are then those before that cut.
    """

    mean: NotNegative
    sd: NotNegative
    maximum: AboveZero | None = None

    def __post_init__(self) -> None:
        """A cut so low that hardly anything passes is an error."""
        if self.maximum is not None and self.maximum < self.mean:
            raise ValueError(f"maximum {self.maximum:g} is below the mean, {self.mean:g}")

    def draw(self, rng: random.Random) -> float:
        """The next value."""
        while True:
            value = self._at(rng.gauss(0.0, 1.0))
            if self.maximum is None or value <= self.maximum:
                return value

    def quantile(self, share: float) -> float:
        """The value that a `share` of all are below."""
        return self._at(NormalDist().inv_cdf(share))

    def _at(self, score: float) -> float:
        if self.mean == 0:
            return 0.0
        variance = 2 * math.log(math.hypot(1.0, self.sd / self.mean))
        return self.mean * math.exp(math.sqrt(variance) * score - variance / 2)


Distribution = Constant | Uniform | Exponential | Normal | Lognormal


def num_tokens(length: Distribution, rng: random.Random, *, at_least: int = 1) -> int:
    """A length drawn and rounded."""
    return max(at_least, round(length.draw(rng)))


class Zipf(Section, frozen=True, tag="zipf"):
    """Item i of `num_items` has weight 1 / (i + 1)^exponent; exponent 0 makes all alike."""

    num_items: Positive
    exponent: NotNegative = 1.0

    def draws(self, rng: random.Random) -> Iterator[int]:
        """Items without end, each independent of the others."""
        weights = ((i + 1) ** -self.exponent for i in range(self.num_items))
        cumulative = list(accumulate(weights))
        total = cumulative[-1]
        while True:
            # Rounding may carry the product to the very end.
            yield min(bisect_right(cumulative, rng.random() * total), self.num_items - 1)


class Deck(Section, frozen=True, tag="deck"):
    """Each item is asked for a fixed number of times, in shuffled order; then come new items.

    `mean` and `sd` are of the times an item is asked for. A deck is `num_items` items long, so
    what is shared stays the same however long it goes on.
    """

    num_items: Positive
    mean: AboveZero
    sd: NotNegative = 0.0

    def draws(self, rng: random.Random) -> Iterator[int]:
        """Items without end; item numbers grow from deck to deck."""
        deck = [item for item, times in enumerate(self.times()) for _ in range(times)]
        first = 0
        while True:
            rng.shuffle(deck)
            yield from (first + item for item in deck)
            first += self.num_items

    def times(self) -> list[int]:
        """How often each item of a deck is asked for: even steps through a lognormal shape."""
        shape = Lognormal(self.mean, self.sd)
        raw = [shape.quantile((i + 0.5) / self.num_items) for i in range(self.num_items)]
        scale = self.mean * self.num_items / sum(raw)
        return [max(1, round(value * scale)) for value in raw]


Popularity = Zipf | Deck
