"""What the functions on workloads change, and that they keep the promises."""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promises import GENERATORS, keep_promises, told

from expediter.workload import streams
from expediter.workload.turn import Turn

Change = Callable[[Iterator[Turn]], Iterator[Turn]]


def workload(name: str, seed: int, *, num_turns: int = 120) -> Iterator[Turn]:
    return islice(GENERATORS[name](random.Random(seed)), num_turns)


def answer_seconds(turn: Turn) -> float:
    return turn.num_output_tokens * 0.03


CHANGES: dict[str, Change] = {
    "first": lambda turns: streams.first(50, turns),
    "between": lambda turns: streams.between(1.0, 20.0, turns),
    "faster": lambda turns: streams.faster(3.0, turns),
    "relabelled": lambda turns: streams.relabelled(turns, tenant="t", priority=2),
    "thinned": lambda turns: streams.thinned(0.5, turns, rng=random.Random(1)),
    "limited": lambda turns: streams.limited(1.5, turns),
    "open": lambda turns: streams.open_loop(turns, seconds=answer_seconds),
}


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from(sorted(GENERATORS)), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(sorted(CHANGES)), max_size=3),
    st.integers(0, 2**32),
)
def test_changes_of_merged_workloads_keep_the_promises(
    names: list[str], changes: list[str], seed: int
) -> None:
    turns = streams.merged(*(workload(name, seed, num_turns=40) for name in names))
    for change in changes:
        turns = CHANGES[change](turns)
    keep_promises(turns)


@pytest.mark.parametrize("name", CHANGES)
def test_changes_take_no_more_than_they_need(name: str) -> None:
    endless = GENERATORS["samples"](random.Random(1))
    assert len(list(islice(CHANGES[name](endless), 10))) == 10


def test_merging_takes_everything_in_order_of_time() -> None:
    whole = list(streams.merged(workload("chat", 1), workload("documents", 2)))
    for name, seed in (("chat", 1), ("documents", 2)):
        own = [told(turn) for turn in whole if turn.label == name]
        assert own == [told(turn) for turn in workload(name, seed)]


def test_a_slice_of_time_begins_at_zero() -> None:
    inside = [t for t in workload("few-shot", 1) if 10 <= t.arrival_time < 30]
    cut = list(streams.between(10.0, 30.0, workload("few-shot", 1)))
    assert [t.transcript.segments for t in cut] == [t.transcript.segments for t in inside]
    assert [t.arrival_time + 10 for t in cut] == pytest.approx([t.arrival_time for t in inside])


def test_faster_arrivals_leave_the_pauses_of_people() -> None:
    for slow, fast in zip(
        workload("chat", 1), streams.faster(4.0, workload("chat", 1)), strict=True
    ):
        assert fast.arrival_time == slow.arrival_time / 4
        assert fast.think_time == slow.think_time


def test_thinning_keeps_whole_sessions() -> None:
    everything = list(workload("chat", 1, num_turns=2000))
    kept = list(streams.thinned(0.3, everything, rng=random.Random(2)))
    sessions = {turn.session for turn in kept}
    assert kept == [turn for turn in everything if turn.session in sessions]
    assert len(sessions) / len({turn.session for turn in everything}) == pytest.approx(0.3, abs=0.1)


def test_a_limited_rate_delays_what_comes_too_soon_and_only_that() -> None:
    original = [t.arrival_time for t in workload("few-shot", 1)]
    limited = [t.arrival_time for t in streams.limited(2.0, workload("few-shot", 1))]
    assert all(late - early >= 0.5 - 1e-9 for early, late in pairwise(limited))
    waits = [new - old for old, new in zip(original, limited, strict=True)]
    assert min(waits) == 0
    assert max(waits) > 0


def test_a_loop_shifts_times_and_renames_sessions_and_if_asked_texts() -> None:
    def passes() -> Iterable[Iterator[Turn]]:
        return (workload("chat", 1, num_turns=30) for _ in range(3))

    same = list(streams.looped(passes(), seconds=1000.0))
    fresh = list(streams.looped(passes(), seconds=1000.0, fresh=True))
    assert keep_promises(same) == keep_promises(fresh) == 90
    for turns in (same, fresh):
        assert turns[30].arrival_time == turns[0].arrival_time + 1000
        assert turns[30].session == f"{turns[0].session}#1"
        assert turns[30].num_prompt_tokens == turns[0].num_prompt_tokens
    first, second, third = ({t.transcript.name for t in fresh[i : i + 30]} for i in (0, 30, 60))
    assert len(first | second | third) == 90
    assert {t.transcript.name for t in same[:30]} == {t.transcript.name for t in same[30:60]}
    names = [set(turn.transcript.block_hashes(16)) for turn in (fresh[0], fresh[30])]
    assert not names[0] & names[1]


def test_an_endless_loop_is_made_as_it_goes() -> None:
    passes = (workload("few-shot", 1, num_turns=5) for _ in count())
    turns = islice(streams.looped(passes, seconds=100.0), 23)
    assert list(turns)[-1].arrival_time > 400


def test_an_open_loop_gives_each_turn_the_time_it_would_have_had() -> None:
    closed = list(workload("chat", 5, num_turns=200))
    opened = list(streams.open_loop(iter(closed), seconds=lambda _: 2.0))
    assert len(opened) == 200
    assert all(turn.think_time is None for turn in opened)
    time = 0.0
    by_text = {turn.transcript: turn.arrival_time for turn in opened}
    for turn in closed:
        time = turn.arrival_time if turn.think_time is None else time + 2.0 + turn.think_time
        assert by_text[turn.transcript] == pytest.approx(time)
