"""The highest request rate that still meets the service level, found by bisection over simulations.

Every rate is tried with the same requests, only sent faster or slower (common random numbers), so
a deployment that fails at one rate does not pass at a higher one by luck. A rate is tried with one
sample of requests after another until it is clear: it passes once the share of requests in time is
above the target with confidence, for TTFT and for TPOT, and fails once it is below for either
(Wilson's interval, with requests counted as independent; after the last sample the plain share
decides). DistServe does the same with one sample of 300 (simdistserve/benchmarks/search_binary.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from expediter.errors import ConfigError
from expediter.planner.deployment import Outcome

Try = Callable[[float, int], Sequence[Outcome]]
"""What the requests of a sample get at a rate."""

MAX_RATE = 1e6
LOWEST = 64
"""What fails at so small a part of the rate to start from fails with hardly any load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`share` of the requests with their first token within `ttft` seconds, and likewise `tpot`."""

    ttft: float
    tpot: float
    share: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """Shares of `num_requests` requests in time."""

    num_requests: int
    ttft: float
    tpot: float

    @property
    def lowest(self) -> float:
        """The worse of the two."""
        return min(self.ttft, self.tpot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """`rate` passes and `failed_rate` does not; `attainment` is at `rate`.

    `rate` is 0 if even `failed_rate`, the lowest that was tried, fails.
    """

    rate: float
    failed_rate: float
    attainment: Attainment | None
    num_trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How closely to look: `tolerance` is relative, `num_samples` the most that are tried."""

    tolerance: float = 0.02
    num_samples: int = 3
    confidence: float = 1.96  # standard deviations; 95 %

    def goodput(self, attempt: Try, target: Target, *, start: float = 1.0) -> Goodput:
        """Doubles or halves from `start` until one rate passes and one fails, then bisects.

        Raises ConfigError if no rate fails.
        """
        trials = _Trials(attempt, target, self)
        passed, failed = self._bracket(trials, start)
        if passed == 0.0:
            return Goodput(
                rate=0.0, failed_rate=failed, attainment=None, num_trials=trials.num_trials
            )
        while failed / passed > 1 + self.tolerance:
            middle = math.sqrt(failed * passed)
            if trials.passes(middle):
                passed = middle
            else:
                failed = middle
        return Goodput(
            rate=passed,
            failed_rate=failed,
            attainment=trials.attainments[passed],
            num_trials=trials.num_trials,
        )

    def _bracket(self, trials: "_Trials", start: float) -> tuple[float, float]:
        """A rate that passes, or 0, and one that fails."""
        rate = start
        if trials.passes(rate):
            while trials.passes(2 * rate):
                rate *= 2
                if rate > MAX_RATE:
                    raise ConfigError(f"no rate up to {MAX_RATE:g}/s misses the service level")
            return rate, 2 * rate
        lowest = start / LOWEST
        if not trials.passes(lowest):
            return 0.0, lowest
        while not trials.passes(rate / 2):
            rate /= 2
        return rate / 2, rate


class _Trials:
    """Tries rates, and remembers what came of them."""

    def __init__(self, attempt: Try, target: Target, search: Search) -> None:
        self._attempt = attempt
        self._target = target
        self._search = search
        self.attainments: dict[float, Attainment] = {}
        self.num_trials = 0

    def passes(self, rate: float) -> bool:
        """Whether the rate meets the service level, after as few samples as make it clear."""
        outcomes: list[Outcome] = []
        for sample in range(self._search.num_samples):
            outcomes += self._attempt(rate, sample)
            self.num_trials += 1
            found = self.attainments[rate] = attainment(outcomes, self._target)
            verdict = self._verdict(found)
            if verdict is not None:
                return verdict
        return found.lowest >= self._target.share

    def _verdict(self, found: Attainment) -> bool | None:
        """None while it could be either."""
        bounds = [
            wilson(share, found.num_requests, z=self._search.confidence)
            for share in (found.ttft, found.tpot)
        ]
        if any(high < self._target.share for _, high in bounds):
            return False
        if all(low >= self._target.share for low, _ in bounds):
            return True
        return None


def attainment(outcomes: Sequence[Outcome], target: Target) -> Attainment:
    """Shares in time; a lost request is in time for neither."""
    num = len(outcomes)
    return Attainment(
        num_requests=num,
        ttft=sum(outcome.ttft <= target.ttft for outcome in outcomes) / num,
        tpot=sum(outcome.tpot <= target.tpot for outcome in outcomes) / num,
    )


def wilson(share: float, num: int, *, z: float) -> tuple[float, float]:
    """The interval around an observed `share` of `num` trials (Wilson, 1927)."""
    spread = z * z / num
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / num + spread / (4 * num)) / (1 + spread)
    return middle - half, middle + half
