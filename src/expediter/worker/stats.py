"""How long answers took: histograms filled as tokens come, read when somebody asks.

Buckets are those of vLLM's metrics, so dashboards made for it fit.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from expediter.clock import Clock
from expediter.request import FinishReason, RequestOutput

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts of values by upper bound, the last one without a bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, *, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class ServingStats:
    """What all answers of a worker had in common; seconds unless the name says otherwise."""

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_BUCKETS)
        self.inter_token = Histogram(TOKEN_BUCKETS)
        self.queue = Histogram(REQUEST_BUCKETS)
        self.request = Histogram(REQUEST_BUCKETS)
        self.num_generated_tokens = 0
        self.num_finished: Counter[FinishReason] = Counter()


class SequenceTimer:
    """Measures one sequence and adds it to the stats; `arrival_time` is on `clock`."""

    def __init__(self, stats: ServingStats, *, arrival_time: float, clock: Clock) -> None:
        self._stats = stats
        self._arrival_time = arrival_time
        self._clock = clock
        self._last_token_time: float | None = None

    def record(self, output: RequestOutput) -> None:
        """Take in what one step gave."""
        num_tokens = len(output.tokens)
        if num_tokens == 0:
            return
        now, stats = self._clock(), self._stats
        stats.num_generated_tokens += num_tokens
        if self._last_token_time is None:
            stats.first_token.observe(now - self._arrival_time)
            if output.scheduled_time is not None:
                stats.queue.observe(output.scheduled_time - self._arrival_time)
        else:
            seconds = (now - self._last_token_time) / num_tokens
            stats.inter_token.observe(seconds, times=num_tokens)
        self._last_token_time = now

    def finish(self, reason: FinishReason) -> None:
        """The sequence ended."""
        self._stats.num_finished[reason] += 1
        self._stats.request.observe(self._clock() - self._arrival_time)
