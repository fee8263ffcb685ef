"""How many requests may be sent again, so that a dying fleet is not stormed.

A token bucket. Every request puts a fraction of a token in, time puts in a few more, so that a
quiet fleet may retry too, and every retry takes one out. While few requests fail, it is always
full; when most fail, what goes out is only little more than what came in.
"""

from expediter.clock import Clock
from expediter.config import RetryConfig


class RetryBudget:
    """One for a whole gateway."""

    def __init__(self, config: RetryConfig, *, clock: Clock) -> None:
        self._fraction = config.fraction
        self._per_second = config.per_second
        self._burst = float(config.burst)
        self._clock = clock
        self._tokens = self._burst
        self._filled_at = clock()

    def earn(self) -> None:
        """A request came."""
        if self._tokens < self._burst:  # as it seldom is
            self._tokens = min(self._burst, self._tokens + self._fraction)

    def take(self) -> bool:
        """Whether one more retry may go out; if so it is paid for."""
        now = self._clock()
        earned = (now - self._filled_at) * self._per_second
        self._filled_at = now
        self._tokens = min(self._burst, self._tokens + earned)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
