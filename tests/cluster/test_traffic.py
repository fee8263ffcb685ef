"""Recorded traffic can be replayed: the same lengths and times, and the same parts in common."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from expediter.cluster.traffic import BLOCK_TOKENS, TrafficLog
from expediter.routing.prompt import Prompt, token_prompt
from expediter.workload.traces import read_mooncake

BLOCK_SIZE = 16


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def prompt(*lengths: tuple[int, int]) -> Prompt:
    """Runs of one token each, as (token, length)."""
    made = token_prompt([token for token, length in lengths for _ in range(length)])
    made.keys(BLOCK_SIZE)
    return made


def add(log: TrafficLog, made: Prompt, *, at: float, output: int = 7) -> None:
    log.add(made, arrived_at=at, num_prompt_tokens=made.num_tokens, num_output_tokens=output)


def test_prompts_that_begin_alike_have_the_same_first_ids() -> None:
    log = TrafficLog(clock=Clock())
    add(log, prompt((1, 1100), (2, 500)), at=90.0)
    add(log, prompt((1, 1100), (3, 100)), at=91.5)
    add(log, prompt((4, 600)), at=91.0)
    first, other, second = log.rows(seconds=60)
    assert [row.timestamp for row in (first, other, second)] == [0, 1000, 1500]
    assert first.hash_ids[:2] == second.hash_ids[:2]
    assert first.hash_ids[2:] != second.hash_ids[2:]
    assert not set(other.hash_ids) & (set(first.hash_ids) | set(second.hash_ids))
    assert [len(row.hash_ids) for row in (first, other, second)] == [4, 2, 3]


def test_only_the_last_seconds_and_the_last_requests_are_kept() -> None:
    log = TrafficLog(clock=Clock(), capacity=3)
    for at in (10.0, 95.0, 96.0, 97.0):
        add(log, prompt((1, 10)), at=at)
    assert len(log.rows(seconds=1000)) == 3
    assert len(log.rows(seconds=4)) == 2


def test_what_was_not_compared_shares_nothing() -> None:
    log = TrafficLog(clock=Clock())
    for _ in range(2):
        log.add(None, arrived_at=99.0, num_prompt_tokens=1000, num_output_tokens=5)
    first, second = log.rows(seconds=10)
    assert not set(first.hash_ids) & set(second.hash_ids)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3000)), min_size=1, max_size=6),
    output=st.integers(1, 50),
)
def test_a_reader_of_traces_takes_it(
    tmp_path_factory: object, lengths: list[tuple[int, int]], output: int
) -> None:
    log = TrafficLog(clock=Clock())
    for token, length in lengths:
        add(log, prompt((token, length)), at=99.0, output=output)
    path = Path(str(tmp_path_factory.mktemp("trace"))) / "trace.jsonl"  # type: ignore[attr-defined]
    path.write_bytes(log.jsonl(seconds=60))
    turns = list(read_mooncake(path))
    assert [turn.num_prompt_tokens for turn in turns] == [length for _, length in lengths]
    assert {turn.num_output_tokens for turn in turns} == {output}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for (token, length), row in zip(lengths, rows, strict=True):
        for (other, size), theirs in zip(lengths, rows, strict=True):
            common = min(length, size) // BLOCK_TOKENS if token == other else 0
            shared = sum(a == b for a, b in zip(row["hash_ids"], theirs["hash_ids"], strict=False))
            assert shared >= common
            assert row is theirs or token == other or shared == 0


def test_the_log_is_bounded_by_blocks_too() -> None:
    log = TrafficLog(clock=Clock(), capacity=3, max_blocks=5)
    for start in range(5):
        add(log, prompt((start, 1024)), at=90.0 + start)
    assert [each.arrived_at for each in log.recent(seconds=60)] == [93.0, 94.0]
    for start in range(5):
        add(log, prompt((start, 100)), at=95.0 + start)
    assert [each.arrived_at for each in log.recent(seconds=60)] == [97.0, 98.0, 99.0]


@given(
    lengths=st.lists(st.none() | st.integers(1, 2000), max_size=12),
    capacity=st.integers(1, 6),
    max_blocks=st.integers(0, 8),
)
def test_kept_are_the_last_ones_whose_blocks_are_not_too_many(
    lengths: list[int | None], capacity: int, max_blocks: int
) -> None:
    """With a prompt or without; one that is too long by itself is not kept either."""
    log = TrafficLog(clock=Clock(), capacity=capacity, max_blocks=max_blocks)
    expected: list[tuple[float, int]] = []
    for number, length in enumerate(lengths):
        if length is None:
            log.add(None, arrived_at=float(number), num_prompt_tokens=9, num_output_tokens=1)
        else:
            add(log, prompt((number, length)), at=float(number))
        expected.append((float(number), (length or 0) // BLOCK_TOKENS))
        while len(expected) > capacity or sum(blocks for _, blocks in expected) > max_blocks:
            expected.pop(0)
    found = [(each.arrived_at, len(each.keys)) for each in log.recent(seconds=1000)]
    assert found == expected
