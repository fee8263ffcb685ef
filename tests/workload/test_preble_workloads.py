"""Preble's Table 1, measured on what the generator makes."""

import random
import statistics
from collections import Counter
from collections.abc import Iterable
from itertools import islice

import pytest

from expediter.workload.arrivals import poisson
from expediter.workload.distributions import Deck
from expediter.workload.preble import TABLE, even_keys, preble, zipf_keys
from expediter.workload.turn import Turn

NAMES = pytest.mark.parametrize("name", [n for n in TABLE if n != "programming"])


def decks(name: str, *, num_decks: int = 1, seed: int = 1) -> list[Turn]:
    """Whole decks, so that every key has all its requests."""
    settings = preble(name)
    deck = settings.levels[1].texts
    assert isinstance(deck, Deck)
    num_turns = num_decks * sum(deck.times())
    starts = poisson(10.0).times(random.Random(seed))
    return list(islice(settings.turns(starts, rng=random.Random(seed)), num_turns))


def key_share(turn: Turn) -> float:
    """The share of the second segment, which is shared but not by all."""
    return turn.prompt.segments[1].num_tokens / turn.num_prompt_tokens


def shared_shares(turns: Iterable[Turn]) -> list[float]:
    """For each prompt, the share that an earlier one began with."""
    seen: set[str] = set()
    shares = []
    for turn in turns:
        segments = turn.prompt.segments
        shares.append(
            sum(s.num_tokens for s in segments if s.name in seen) / turn.num_prompt_tokens
        )
        seen.update(segment.name for segment in segments)
    return shares


@NAMES
def test_lengths_are_the_tables(name: str) -> None:
    turns = decks(name)
    prompts = [turn.num_prompt_tokens for turn in turns]
    outputs = [turn.num_output_tokens for turn in turns]
    row = TABLE[name]
    assert statistics.fmean(prompts) == pytest.approx(row.prompt.mean, rel=0.08)
    assert statistics.pstdev(prompts) == pytest.approx(row.prompt.sd, rel=0.2)
    assert statistics.fmean(outputs) == pytest.approx(row.output.mean, rel=0.03)
    assert statistics.pstdev(outputs) == pytest.approx(row.output.sd, rel=0.1)


@NAMES
def test_sharing_is_the_tables(name: str) -> None:
    """Shares within 3 points; how they vary within 5, for what is shared with earlier requests."""
    turns = decks(name)
    row = TABLE[name]
    shares = shared_shares(turns)
    assert statistics.fmean(shares) == pytest.approx(row.shared_prefix.mean, abs=0.03)
    assert statistics.pstdev(shares) == pytest.approx(row.shared_prefix.sd, abs=0.05)
    keys = statistics.fmean(map(key_share, turns))
    assert keys == pytest.approx(row.key_portion.mean, abs=0.03)
    sharing = Counter(turn.prompt.segments[1].name for turn in turns).values()
    assert statistics.fmean(sharing) == pytest.approx(row.num_sharing.mean, rel=0.05)
    assert statistics.pstdev(sharing) == pytest.approx(row.num_sharing.sd, rel=0.2)


def test_programming_is_the_tables_but_for_its_few_giant_keys() -> None:
    """A deviation of 2,157 requests around 126: one key may have a fifth of all requests.

    So lengths are those of the keys, each counted once, and the bounds are wider.
    """
    turns = decks("programming", num_decks=1)
    row = TABLE["programming"]
    keys = {turn.prompt.segments[1].name: turn for turn in turns}.values()
    prompts = statistics.fmean(turn.num_prompt_tokens for turn in keys)
    outputs = statistics.fmean(turn.num_output_tokens for turn in turns)
    assert prompts == pytest.approx(row.prompt.mean, rel=0.1)
    assert outputs == pytest.approx(row.output.mean, rel=0.05)
    assert statistics.fmean(map(key_share, keys)) == pytest.approx(row.key_portion.mean, abs=0.06)
    assert statistics.fmean(shared_shares(turns)) == pytest.approx(0.97, abs=0.02)
    assert len(turns) / len(keys) == pytest.approx(row.num_sharing.mean, rel=0.02)


def test_the_released_benchmarks_loads_are_even_or_zipf() -> None:
    starts = poisson(10.0).times(random.Random(1))
    even = preble("toolbench", keys=even_keys(50, num_requests=500))
    turns = islice(even.turns(starts, rng=random.Random(1)), 500)
    counts = Counter(turn.prompt.segments[1].name for turn in turns)
    assert set(counts.values()) == {10}
    skewed = preble("toolbench", keys=zipf_keys(320))
    turns = islice(skewed.turns(starts, rng=random.Random(1)), 5000)
    top = Counter(turn.prompt.segments[1].name for turn in turns).most_common(1)
    weight = 1 / sum(rank**-1.1 for rank in range(1, 321))
    assert top == [("toolbench/1/0", pytest.approx(5000 * weight, rel=0.1))]
