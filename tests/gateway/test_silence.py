"""Time-outs count silence as sweeps see it: never longer than it is, and shorter by one step."""

from hypothesis import given
from hypothesis import strategies as st

from expediter.gateway.silence import silence

LONGEST_STEP = 10.0


class Watched:
    is_quiet, quiet_since = False, 0.0


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1))
def test_silence_is_never_overrated_and_underrated_by_less_than_a_step(
    steps: list[tuple[int, bool]],
) -> None:
    """At each whole second something may happen; sweeps come every few seconds."""
    watched, now, happened_at = Watched(), 0.0, 0.0
    for seconds, happens in steps:
        if happens:
            now += 1
            watched.is_quiet, happened_at = False, now
        now += seconds
        found, true = silence(watched, now), now - happened_at
        assert true - LONGEST_STEP <= found <= true
