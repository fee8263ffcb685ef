"""A circuit breaker: whether a worker that answers its health checks also serves requests.

    closed     requests pass; so many failures in a row open it
    open       none pass, for a while
    half-open  one passes, the probe: an answer closes the breaker, a failure opens it again,
               for twice as long

Requests overlap, so some end long after the state they began in. Each gets a ticket when it
begins, and what becomes of it counts only while the breaker has not changed since: a hundred
requests that were lost at once open it once, and none of them can end a probe.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NewType

from expediter.clock import Clock

Ticket = NewType("Ticket", int)
"""The period of the breaker in which a request began."""
_OF_NO_PERIOD = Ticket(-1)


class BreakerState(StrEnum):
    """HALF_OPEN lets one request through at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """One worker's. Ask `allows` before `begin`, and say `ended` whatever happened.

    Other requests may begin between the two: the second leg of a pair is sent long after it was
    placed.

    While it `is_closed`, a request's ticket is the `period`, and to `begin`, be `answered` and have
    `ended` change nothing: then a caller in a hurry need not say so.
    """

    def __init__(
        self,
        *,
        num_failures: int,
        open_seconds: float,
        max_open_seconds: float,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`num_failures` in a row open it; first for `open_seconds`.

        `changed` is called after it has opened or closed, and as a probe begins or ends.
        """
        self._limit = num_failures
        self._open_seconds = open_seconds
        self._max_open_seconds = max(open_seconds, max_open_seconds)
        self._clock = clock
        self._changed = changed
        self.period = Ticket(0)
        self._pause = open_seconds
        self._opens_at = 0.0  # when the next probe may pass
        self._has_probe = False
        self.is_closed = True
        self.num_failures = 0  # in a row
        self.num_opened = 0

    @property
    def state(self) -> BreakerState:
        """Time alone ends OPEN."""
        if self.is_closed:
            return BreakerState.CLOSED
        may_probe = self._has_probe or self._clock() >= self._opens_at
        return BreakerState.HALF_OPEN if may_probe else BreakerState.OPEN

    def allows(self) -> bool:
        """Whether a request may begin now."""
        return self.is_closed or (not self._has_probe and self._clock() >= self._opens_at)

    def begin(self) -> Ticket:
        """A request begins; in HALF_OPEN it is the probe.

        One that was let through and begins later, when there is a probe already, tells nothing.
        """
        if self.is_closed:
            return self.period
        if self._has_probe:
            return _OF_NO_PERIOD
        self._has_probe = True
        self._change()
        return self.period

    def answered(self, ticket: Ticket) -> Ticket:
        """The answer has begun, which is all that is asked of a probe. Returns the new ticket."""
        if ticket == self.period and not self.is_closed:
            self._close()
            return self.period
        return ticket

    def succeeded(self, ticket: Ticket) -> None:
        """The answer is complete."""
        if ticket != self.period:
            return
        self.num_failures = 0
        if not self.is_closed:
            self._close()

    def failed(self, ticket: Ticket) -> None:
        """The worker failed the request."""
        if ticket != self.period:
            return
        if not self.is_closed:
            self._open(min(2 * self._pause, self._max_open_seconds))
            return
        self.num_failures += 1
        if self.num_failures >= self._limit:
            self._open(self._open_seconds)

    def ended(self, ticket: Ticket) -> None:
        """The request is over. If nothing was said of a probe, its client left: free its place."""
        if ticket == self.period and not self.is_closed:
            self._has_probe = False
            self._change()

    def retry_now(self) -> None:
        """There is new reason for hope: let a probe pass at once."""
        self._opens_at = self._clock()

    def _open(self, pause: float) -> None:
        self._pause = pause
        self._opens_at = self._clock() + pause
        self._has_probe = self.is_closed = False
        self.num_failures = 0
        self.num_opened += 1
        self._change()

    def _close(self) -> None:
        self._has_probe, self.is_closed = False, True
        self.num_failures = 0
        self._change()

    def _change(self) -> None:
        self.period = Ticket(self.period + 1)
        self._changed()
