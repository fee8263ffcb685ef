"""What a tenant may use: requests and tokens by time, and requests at once.

A bucket holds at most its capacity and fills at its rate, so any window of t seconds sees at
most capacity + rate * t. Tokens are reserved before a request runs, for the longest answer it may
get, and what it did not use is given back at its end.
"""

from typing import Self

from expediter.clock import Clock
from expediter.config import TenantConfig
from expediter.errors import RequestError, RequestRejected

SECONDS_PER_MINUTE = 60.0
BUSY_RETRY_SECONDS = 1.0  # when one of the tenant's own requests ends, nobody knows


class TokenBucket:
    """A minute's allowance, full at first. What turns out dearer than was taken leaves a debt."""

    def __init__(self, per_minute: int, *, clock: Clock) -> None:
        self.capacity = float(per_minute)
        self._rate = per_minute / SECONDS_PER_MINUTE
        self._clock = clock
        self._level = self.capacity
        self._filled_at = clock()

    def resize(self, per_minute: int) -> None:
        """A new allowance; what is there stays, up to the new capacity."""
        self._level = min(self._filled(), float(per_minute))
        self.capacity = float(per_minute)
        self._rate = per_minute / SECONDS_PER_MINUTE

    def wait_seconds(self, amount: float) -> float:
        """How long until `amount`, which is at most the capacity, is there; 0 if it is now."""
        return max(0.0, (amount - self._filled()) / self._rate)

    def take(self, amount: float) -> None:
        """Take `amount`, or give it back if it is negative."""
        self._level = min(self.capacity, self._filled() - amount)

    def _filled(self) -> float:
        now = self._clock()
        self._level = min(self.capacity, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
        return self._level


class TenantLimits:
    """One tenant's limits and what is in use of them."""

    def __init__(self, config: TenantConfig, *, assumed_output_tokens: int, clock: Clock) -> None:
        self.tenant_id = config.tenant_id
        self._clock = clock
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self.num_running = 0
        self.configure(config, assumed_output_tokens=assumed_output_tokens)

    def configure(self, config: TenantConfig, *, assumed_output_tokens: int) -> None:
        """Other limits from now on; what is in use of them stays counted."""
        self._requests = self._bucket(self._requests, config.requests_per_minute)
        self._tokens = self._bucket(self._tokens, config.tokens_per_minute)
        self._max_concurrent = config.max_concurrent
        self._assumed_output_tokens = assumed_output_tokens

    def _bucket(self, bucket: TokenBucket | None, per_minute: int | None) -> TokenBucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return TokenBucket(per_minute, clock=self._clock)
        bucket.resize(per_minute)
        return bucket

    def slot(self) -> "Lease":
        """Admits one request, until the lease ends; raises RequestRejected."""
        if self._max_concurrent is not None and self.num_running >= self._max_concurrent:
            raise RequestRejected(
                f"{self.num_running} requests are running, which is the limit",
                retry_after=BUSY_RETRY_SECONDS,
            )
        if self._requests is not None:
            _take(self._requests, 1, "requests")
        self.num_running += 1
        return Lease(self, self._tokens, assumed_output_tokens=self._assumed_output_tokens)


class Lease:
    """The slot and the tokens of one running request; `end` it, or use it in a `with`."""

    def __init__(
        self, limits: TenantLimits, bucket: TokenBucket | None, *, assumed_output_tokens: int
    ) -> None:
        self._limits = limits
        self.tenant_id = limits.tenant_id
        self._assumed_output_tokens = assumed_output_tokens
        self._bucket = bucket
        self._num_reserved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """The request is over: its slot is free."""
        self._limits.num_running -= 1

    def reserve(self, prompt_tokens: int, max_output_tokens: int | None) -> None:
        """Take what the request may need; raises RequestRejected, or RequestError if never."""
        if self._bucket is None:
            return
        if max_output_tokens is None:
            max_output_tokens = self._assumed_output_tokens
        num_tokens = prompt_tokens + max(0, max_output_tokens)
        _take(self._bucket, num_tokens, "tokens")
        self._num_reserved = num_tokens

    def settle(self, num_tokens: int | None) -> None:
        """Put the actual use in place of what was reserved, if it is known."""
        if self._bucket is not None and num_tokens is not None:
            self._bucket.take(num_tokens - self._num_reserved)
            self._num_reserved = num_tokens


def _take(bucket: TokenBucket, amount: int, unit: str) -> None:
    if amount > bucket.capacity:
        raise RequestError(
            f"the request may need {amount} {unit}; the limit is {bucket.capacity:.0f} a minute"
        )
    wait = bucket.wait_seconds(amount)
    if wait > 0:
        raise RequestRejected(
            f"the limit of {bucket.capacity:.0f} {unit} a minute is reached", retry_after=wait
        )
    bucket.take(amount)
