"""A turn as the worker's cache sees it."""

import random

from msgspec.structs import replace

from expediter.config import KVCacheConfig
from expediter.kvcache.hashing import CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.request import RequestId
from expediter.workload.conversations import CHAT
from expediter.workload.distributions import Constant
from expediter.workload.turn import Turn

BLOCK_SIZE = 16


def run(cache: KVCacheManager, turn: Turn) -> int:
    """Compute prompt and answer; how many prompt tokens were cached."""
    sequence = cache.open(turn.request(RequestId("any"), block_size=BLOCK_SIZE))
    num_cached = cache.admit(sequence)
    assert num_cached is not None
    sequence.append([0] * turn.num_output_tokens)
    assert cache.allocate_slots(sequence, sequence.num_tokens)
    cache.publish(sequence, sequence.num_tokens)
    cache.free(sequence)
    return num_cached


def test_the_next_turn_finds_every_full_block_of_question_and_answer() -> None:
    cache = KVCacheManager(
        KVCacheConfig(block_size=BLOCK_SIZE), num_blocks=4000, namespace=CacheNamespace(model="m")
    )
    five_turns = replace(CHAT, num_turns=Constant(5))
    length_before = 0
    for turn in five_turns.turns([0.0], rng=random.Random(8)):
        assert run(cache, turn) == length_before // BLOCK_SIZE * BLOCK_SIZE
        length_before = turn.transcript.num_tokens


def test_the_request_says_how_long_prompt_and_answer_are() -> None:
    [turn, *_] = CHAT.turns([3.0], rng=random.Random(1))
    request = turn.request(RequestId("r"), block_size=BLOCK_SIZE, arrival_time=5.0)
    assert request.arrival_time == 5.0
    assert request.num_prompt_tokens == turn.num_prompt_tokens == turn.prompt.num_tokens
    assert request.sampling.max_tokens == turn.num_output_tokens
    assert request.sampling.ignore_eos
    total = turn.num_prompt_tokens + turn.num_output_tokens
    assert request.block_hashes is not None
    assert len(request.block_hashes) == total // BLOCK_SIZE
