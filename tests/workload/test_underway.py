"""Sessions that are going on when the workload begins."""

import random

import pytest
from msgspec.structs import replace
from promises import keep_promises

from expediter.workload.arrivals import poisson
from expediter.workload.conversations import CHAT
from expediter.workload.distributions import Constant
from expediter.workload.streams import open_loop
from expediter.workload.turn import Turn
from expediter.workload.underway import underway

SECONDS_PER_TOKEN = 0.01
RATE = 20.0
"""Requests a second: 2.5 conversations of eight."""


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    chat = replace(CHAT, num_turns=Constant(8))
    begun = chat.turns(poisson(RATE / 8).times(random.Random(1)), rng=random.Random(2))
    return list(underway(begun, since=900.0, num_turns=3000, seconds_per_token=SECONDS_PER_TOKEN))


def test_the_rate_is_there_from_the_first_second_to_the_last(turns: list[Turn]) -> None:
    """3,000 turns take 150 s, and each of ten parts has its share."""
    reckoned = [
        turn.arrival_time
        for turn in open_loop(turns, seconds=lambda t: t.num_output_tokens * SECONDS_PER_TOKEN)
    ]
    assert len(reckoned) == 3000
    assert reckoned[-1] == pytest.approx(150, rel=0.08)
    parts = [sum(int(at // 15) == part for at in reckoned) for part in range(9)]
    assert all(part == pytest.approx(15 * RATE, rel=0.25) for part in parts)


def test_it_keeps_what_a_workload_promises(turns: list[Turn]) -> None:
    assert keep_promises(turns) == 3000


def test_a_session_goes_on_with_its_history(turns: list[Turn]) -> None:
    """Most sessions of the first seconds began before: their prompts hold earlier answers."""
    early = [turn for turn in turns if turn.arrival_time < 5 and turn.think_time is None]
    with_history = [t for t in early if any("answer" in s.name for s in t.prompt.segments)]
    assert len(with_history) > len(early) * 0.7
