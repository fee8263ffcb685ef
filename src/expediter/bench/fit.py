"""What a worker's steps cost, from timings of them: least squares on

    prefill = a + b n + c (n p + n^2 / 2)      n new tokens after p cached ones
    decode  = a + b B + c S                    B requests with S tokens of context together

in milliseconds. What is minimised is the relative error, so that short steps count as much as
long ones. A coefficient that would be negative, which no step's cost is, is left out.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from expediter.errors import EndpointError

Coefficients = tuple[float, float, float]
Floats = NDArray[np.float64]

MIN_POINTS = 3


class PrefillPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt that was timed."""

    new_tokens: int
    cached_tokens: int
    seconds: float

    @property
    def features(self) -> Coefficients:
        """What the coefficients are multiplied by."""
        n, p = self.new_tokens, self.cached_tokens
        return 1.0, float(n), n * p + n * n / 2


class DecodePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a batch, in the mean; context in tokens of all its requests."""

    batch: float
    context_tokens: float
    seconds: float

    @property
    def features(self) -> Coefficients:
        """What the coefficients are multiplied by."""
        return 1.0, self.batch, self.context_tokens


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients in milliseconds, and their mean relative error on the points."""

    coefficients: Coefficients
    error: float

    def ms(self, point: PrefillPoint | DecodePoint) -> float:
        """What the line says of a point."""
        return sum(c * f for c, f in zip(self.coefficients, point.features, strict=True))


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Both lines and the points that they are of."""

    prefill: Line
    decode: Line
    prefill_points: Sequence[PrefillPoint]
    decode_points: Sequence[DecodePoint]

    @property
    def error(self) -> float:
        """The mean relative error over all points."""
        parts = (self.prefill, self.prefill_points), (self.decode, self.decode_points)
        total = sum(line.error * len(points) for line, points in parts)
        return total / (len(self.prefill_points) + len(self.decode_points))


def fit(prefill: Sequence[PrefillPoint], decode: Sequence[DecodePoint]) -> Fit:
    """Both lines; EndpointError if there are too few points."""
    return Fit(
        prefill=line(prefill, what="prefill"),
        decode=line(decode, what="decode"),
        prefill_points=prefill,
        decode_points=decode,
    )


def line(points: Sequence[PrefillPoint] | Sequence[DecodePoint], *, what: str) -> Line:
    """The line with the least relative error; EndpointError for fewer than three points."""
    if len(points) < MIN_POINTS:
        raise EndpointError(f"{len(points)} points of {what} can be used, {MIN_POINTS} are needed")
    features = np.array([point.features for point in points])
    ms = np.array([point.seconds * 1e3 for point in points])
    coefficients = _solve(features / ms[:, None])
    error = float(np.mean(np.abs(features @ coefficients / ms - 1)))
    a, b, c = coefficients.tolist()
    return Line(coefficients=(a, b, c), error=error)


def _solve(weighted: Floats) -> Floats:
    """The least squares of `weighted` x = 1 over x >= 0: the most negative go one by one."""
    size = np.linalg.norm(weighted, axis=0)
    size[size == 0] = 1.0
    found = np.zeros(weighted.shape[1])
    kept = list(range(weighted.shape[1]))
    ones = np.ones(len(weighted))
    while kept:
        solution = np.linalg.lstsq(weighted[:, kept] / size[kept], ones)[0] / size[kept]
        worst = int(np.argmin(solution * size[kept]))
        if solution[worst] >= 0:
            found[kept] = solution
            break
        kept.pop(worst)
    return found
