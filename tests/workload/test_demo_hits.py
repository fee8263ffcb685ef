"""The demo's traffic through eight replicas' caches hits what real text does.

Blocks of 500 tokens are exact here: a history grows by 500 behind a system prompt of 2,000.
"""

import random
from collections.abc import Callable
from itertools import islice

import pytest

from expediter.workload.arrivals import even
from expediter.workload.demo import Demo
from expediter.workload.turn import Turn
from experiments.lru import LRU

BLOCK_SIZE = 500
Route = Callable[[int, Turn], int]


def hit_rate(route: Route, *, skew: float = 1.0) -> float:
    """Over requests 5,000 to 19,999, replicas holding 400,000 tokens each."""
    caches = [LRU(400_000 // BLOCK_SIZE) for _ in range(8)]
    times = even(10.0).times(random.Random(1))
    turns = Demo(skew=skew).turns(times, rng=random.Random(1))
    num_hit_tokens = num_tokens = 0
    for number, turn in enumerate(islice(turns, 20_000)):
        cache = caches[route(number, turn)]
        if number >= 5000:
            num_hit_tokens += cache.num_hits(turn.prompt.block_hashes(BLOCK_SIZE)) * BLOCK_SIZE
            num_tokens += turn.num_prompt_tokens
        cache.use(turn.transcript.block_hashes(BLOCK_SIZE))
    return num_hit_tokens / num_tokens


def sticky(_: int, turn: Turn) -> int:
    assert turn.session is not None
    return int(turn.session.rpartition("/")[2]) % 8


def test_round_robin_loses_half() -> None:
    assert hit_rate(lambda number, _: number % 8) == pytest.approx(0.518, abs=0.01)


def test_sticky_conversations_find_their_history() -> None:
    assert hit_rate(sticky) == pytest.approx(0.950, abs=0.005)
