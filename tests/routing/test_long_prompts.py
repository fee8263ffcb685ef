"""What makes long prompts cheap changes no answer."""

import random

from hypothesis import given
from hypothesis import strategies as st

from expediter.routing.assumed import RECENT_SHARE, AssumedBlocks
from expediter.routing.chain_memo import SPAN_BLOCKS, ChainMemo
from expediter.routing.prompt import (
    BYTES_PER_TOKEN,
    BlockKey,
    chain_keys,
    named_prompt,
    token_prompt,
)

BLOCK_SIZE = 2
SPAN_BYTES = SPAN_BLOCKS * BLOCK_SIZE * BYTES_PER_TOKEN


@given(
    cuts=st.lists(st.tuples(st.integers(0, 4 * SPAN_BYTES), st.integers(0, 255)), max_size=8),
    extras=st.sampled_from([(), (b"salt",), (b"one", b"two")]),
    max_spans=st.integers(1, 8),
)
def test_remembered_spans_give_the_keys_that_hashing_gives(cuts, extras, max_spans) -> None:
    memo, whole = ChainMemo(max_spans=max_spans), random.Random(1).randbytes(5 * SPAN_BYTES)
    for length, changed in cuts:
        data = whole[: length // 2] + bytes([changed]) + whole[length // 2 : length]
        given_to_both = {"block_size": BLOCK_SIZE, "parent": BlockKey(b"p" * 16), "extras": extras}
        assert memo.chain(data, **given_to_both) == chain_keys(data, **given_to_both)
        assert memo.num_spans <= 2 * max(2, max_spans)  # of two lengths


def test_a_prompts_keys_are_one_list_whoever_computes_them() -> None:
    tokens = list(range(1000))
    assert token_prompt(tokens).keys(16, chain=ChainMemo().chain) == token_prompt(tokens).keys(16)


def chain(name: int, length: int) -> list[BlockKey]:
    names = [bytes([name, i]) for i in range(length)]
    return named_prompt(names, num_tokens=length, block_size=1).keys(1)


@given(
    puts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=60),
    capacity=st.integers(1, 64),
)
def test_what_was_left_where_it_is_outlives_what_it_was_left_for(puts, capacity) -> None:
    held: set[BlockKey] = set()
    blocks = AssumedBlocks(capacity=capacity, added=held.update, dropped=held.difference_update)
    for name, length in puts:
        keys = chain(name, length)
        blocks.put(keys, expires_at=1.0)
        assert len(held) == len(blocks) <= capacity
        assert held.issuperset(keys[:capacity])


def test_a_recent_beginning_is_not_put_in_again_until_its_time_runs_short() -> None:
    blocks = AssumedBlocks(capacity=80, added=lambda _: None, dropped=lambda _: None)
    blocks.put(chain(0, 4), expires_at=8.0, slack=1.0)
    blocks.put(chain(0, 5), expires_at=8.5, slack=1.0)
    blocks.expire(8.2)
    assert len(blocks) == 1  # the fifth block alone was put in again
    blocks.put(chain(1, 4), expires_at=8.0, slack=1.0)
    blocks.put(chain(1, 5), expires_at=9.5, slack=1.0)
    blocks.expire(9.0)
    assert len(blocks) == 5


def test_a_beginning_that_is_used_stays_while_others_come_and_go() -> None:
    held: set[BlockKey] = set()
    blocks = AssumedBlocks(capacity=80, added=held.update, dropped=held.difference_update)
    head = chain(0, 4)
    for number in range(1, 100):
        blocks.put(head, expires_at=1.0)
        blocks.put(chain(number, 80 // RECENT_SHARE), expires_at=1.0)
        assert held.issuperset(head)


def test_prompts_that_come_back_forever_take_no_more_memory() -> None:
    blocks = AssumedBlocks(capacity=80, added=lambda _: None, dropped=lambda _: None)
    for number in range(1000):
        blocks.put(chain(number % 2, 30), expires_at=1.0)
    assert len(blocks) == 60
    assert blocks.num_listed <= 2 * 80
