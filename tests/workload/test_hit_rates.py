"""One pass for all sizes of cache, against a cache that is really there."""

import random
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from promises import GENERATORS

from expediter.workload.analysis import HitCurve, hit_curve, hit_rate
from expediter.workload.depths import Depths
from expediter.workload.transcript import EMPTY, Segment, TranscriptTree
from expediter.workload.turn import Turn
from experiments.lru import LRU

BLOCK_SIZE = 4
PROMPTS = st.lists(st.builds(Segment, st.sampled_from("abcd"), st.integers(1, 9)), max_size=4)
WORKLOADS = st.lists(PROMPTS.filter(bool), max_size=25)


def as_turns(prompts: Sequence[Sequence[Segment]]) -> list[Turn]:
    tree = TranscriptTree()
    return [
        Turn(arrival_time=i, transcript=tree.grow(prompt).then(f"answer {i % 3}", 5))
        for i, prompt in enumerate(prompts)
    ]


def used_blocks(turn: Turn, *, with_answers: bool, with_partial_blocks: bool) -> tuple[list, list]:
    """The blocks that are looked up, and those that are cached afterwards."""
    prompt = turn.prompt.block_hashes(BLOCK_SIZE)
    if with_partial_blocks and turn.num_prompt_tokens % BLOCK_SIZE:
        prompt.append(turn.prompt.name)
    return prompt, turn.transcript.block_hashes(BLOCK_SIZE) if with_answers else prompt


@given(WORKLOADS, st.booleans(), st.booleans())
def test_every_point_of_the_curve_is_what_a_cache_of_that_size_hits(
    prompts: list[list[Segment]], with_answers: bool, with_partial_blocks: bool
) -> None:
    ways = {"with_answers": with_answers, "with_partial_blocks": with_partial_blocks}
    turns = as_turns(prompts)
    curve = hit_curve(turns, block_size=BLOCK_SIZE, **ways)
    for size in (0, 1, 2, 5, 10, 20, 10_000):
        cache = LRU(size)
        num_hits = num_blocks = 0
        for turn in turns:
            looked_up, cached = used_blocks(turn, **ways)
            num_blocks += len(looked_up)
            num_hits += cache.num_hits(looked_up)
            cache.use(cached)
        found = curve.at(size)
        assert (found.num_blocks, found.num_hit_blocks) == (num_blocks, num_hits)
        assert found == hit_rate(turns, size, block_size=BLOCK_SIZE, **ways)
    assert curve.at() == curve.at(curve.num_distinct_blocks) == curve.at(10_000)


@given(st.lists(st.lists(st.integers(0, 40), unique=True), max_size=60), st.data())
def test_depths_are_places_in_the_stack_however_often_it_is_packed(
    uses: list[list[int]], data: st.DataObject
) -> None:
    depths = Depths()
    stack: list[bytes] = []
    for numbers in uses:
        names = [bytes([number]) for number in numbers]
        depths.use(names)
        stack = names + [name for name in stack if name not in names]
        if data.draw(st.booleans()):
            depths._pack()
        assert list(depths.of_prefix(stack)) == list(range(1, len(stack) + 1))
        assert depths.num_blocks == len(stack)


def test_the_row_is_packed_when_most_of_it_is_empty() -> None:
    depths = Depths()
    for number in range(5000):
        depths.use([bytes([number % 7])])
    assert len(depths._tree) <= 4 * 7 + 1024 + 1
    assert list(depths.of_prefix([bytes([4999 % 7])])) == [1]


def test_tokens_of_a_partial_block_are_counted_as_they_are() -> None:
    turns = [
        Turn(arrival_time=0, transcript=EMPTY.then("p", 10).then("a", 1)),
        Turn(arrival_time=1, transcript=EMPTY.then("p", 10).then("b", 1)),
    ]
    full = hit_rate(turns, block_size=4)
    assert (full.num_hit_blocks, full.blocks, full.tokens) == (2, 0.5, 8 / 20)
    partial = hit_rate(turns, block_size=4, with_answers=False, with_partial_blocks=True)
    assert (partial.num_hit_blocks, partial.blocks, partial.tokens) == (3, 0.5, 0.5)


def test_an_empty_workload_hits_nothing() -> None:
    assert hit_rate([], block_size=16).blocks == HitCurve().at(5).tokens == 0.0


@pytest.mark.parametrize("name", ["chat", "documents", "toolbench"])
def test_a_larger_cache_never_hits_less(name: str) -> None:
    turns = islice(GENERATORS[name](random.Random(1)), 200)
    curve = hit_curve(turns, block_size=64)
    rates = [curve.at(size).tokens for size in range(0, 20_000, 500)]
    assert rates == sorted(rates)
    assert rates[-1] > 0.5
