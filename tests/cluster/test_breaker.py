"""The circuit breaker: by hand, and against a model that only knows the rules."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import data, floats

from expediter.cluster.breaker import BreakerState, CircuitBreaker, Ticket

LIMIT, OPEN_SECONDS, MAX_SECONDS = 3, 1.0, 5.0


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def breaker(time: Time) -> CircuitBreaker:
    return CircuitBreaker(
        num_failures=LIMIT, open_seconds=OPEN_SECONDS, max_open_seconds=MAX_SECONDS, clock=time
    )


def opened(time: Time) -> CircuitBreaker:
    one = breaker(time)
    for ticket in [one.begin() for _ in range(LIMIT)]:
        one.failed(ticket)
    return one


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not() -> None:
    one = breaker(Time())
    for _ in range(LIMIT - 1):
        one.failed(one.begin())
    one.succeeded(one.begin())
    for _ in range(LIMIT - 1):
        one.failed(one.begin())
    assert one.allows()
    one.failed(one.begin())
    assert not one.allows()
    assert one.state is BreakerState.OPEN


def test_one_probe_at_a_time_and_its_first_byte_closes_the_breaker() -> None:
    time = Time()
    one = opened(time)
    time.now = OPEN_SECONDS
    assert one.state is BreakerState.HALF_OPEN
    probe = one.begin()
    assert not one.allows()
    one.answered(probe)
    assert one.state is BreakerState.CLOSED


@pytest.mark.parametrize(("trial", "pause"), [(1, 2.0), (2, 4.0), (3, 5.0), (4, 5.0)])
def test_each_failed_trial_doubles_the_pause_up_to_the_longest(trial: int, pause: float) -> None:
    time = Time()
    one = opened(time)
    for _ in range(trial):
        time.now += MAX_SECONDS
        one.failed(one.begin())
    time.now += pause - 0.01
    assert not one.allows()
    time.now += 0.01
    assert one.allows()


def test_a_probe_whose_client_leaves_frees_its_place() -> None:
    time = Time()
    one = opened(time)
    time.now = OPEN_SECONDS
    one.ended(one.begin())
    assert one.allows()


def test_requests_from_before_cannot_end_a_probe_nor_open_it_twice() -> None:
    time = Time()
    one = breaker(time)
    early = [one.begin() for _ in range(10)]
    for ticket in early[:5]:
        one.failed(ticket)
    assert one.num_opened == 1
    time.now = OPEN_SECONDS
    one.begin()
    one.succeeded(early[5])
    one.failed(early[6])
    one.ended(early[7])
    assert one.state is BreakerState.HALF_OPEN
    assert not one.allows()


def test_a_leg_that_begins_beside_the_probe_tells_nothing() -> None:
    """It was placed when the breaker was closed; by now another request is the probe."""
    time = Time()
    one = opened(time)
    time.now = OPEN_SECONDS
    probe = one.begin()
    late = one.begin()
    one.failed(late)
    one.succeeded(late)
    one.ended(late)
    assert one.state is BreakerState.HALF_OPEN
    one.answered(probe)
    assert one.state is BreakerState.CLOSED


class AgainstRules(RuleBasedStateMachine):
    """The rules, written down a second time without periods: each ticket remembers its epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.breaker = breaker(self.time)
        self.tickets: list[tuple[Ticket, int]] = []
        self.epoch = self.row = 0
        self.is_open = False
        self.probe: int | None = None
        self.until = self.pause = 0.0

    def may_begin(self) -> bool:
        return not self.is_open or (self.probe is None and self.time.now >= self.until)

    @precondition(lambda self: self.may_begin())
    @rule()
    def begin(self) -> None:
        if self.is_open:
            self.epoch += 1
            self.probe = self.epoch
        self.tickets.append((self.breaker.begin(), self.epoch))

    @rule(seconds=floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.time.now += seconds

    @precondition(lambda self: self.tickets)
    @rule(data=data())
    def succeed(self, data: object) -> None:
        ticket, epoch = self._draw(data)
        self.breaker.succeeded(ticket)
        self.breaker.ended(ticket)
        if epoch == self.epoch:
            self.row = 0
            if self.is_open:
                self.is_open, self.probe = False, None
                self.epoch += 1

    @precondition(lambda self: self.tickets)
    @rule(data=data())
    def fail(self, data: object) -> None:
        ticket, epoch = self._draw(data)
        self.breaker.failed(ticket)
        self.breaker.ended(ticket)
        if epoch != self.epoch:
            return
        self.row += 1
        if self.is_open or self.row == LIMIT:
            self.pause = min(2 * self.pause, MAX_SECONDS) if self.is_open else OPEN_SECONDS
            self.until = self.time.now + self.pause
            self.is_open, self.probe, self.row = True, None, 0
            self.epoch += 1

    @precondition(lambda self: self.tickets)
    @rule(data=data())
    def leave(self, data: object) -> None:
        ticket, epoch = self._draw(data)
        self.breaker.ended(ticket)
        if epoch == self.probe:
            self.probe = None
            self.epoch += 1

    @invariant()
    def both_let_the_same_pass(self) -> None:
        assert self.breaker.allows() == self.may_begin()
        assert self.breaker.is_closed == (not self.is_open)

    def _draw(self, data: object) -> tuple[Ticket, int]:
        from hypothesis.strategies import integers

        return self.tickets.pop(data.draw(integers(0, len(self.tickets) - 1)))  # type: ignore[attr-defined]


AgainstRules.TestCase.settings = settings(max_examples=100, deadline=None)
TestAgainstRules = AgainstRules.TestCase
