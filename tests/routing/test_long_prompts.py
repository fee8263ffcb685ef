"""What makes long prompts cheap changes no answer."""

import random

from hypothesis import given
from hypothesis import strategies as st

from expediter.load import WorkerId
from expediter.routing.assumed import RECENT_SHARE, AssumedBlocks
from expediter.routing.chain_memo import SPAN_BLOCKS, ChainMemo
from expediter.routing.chains import BYTES_PER_TOKEN, BlockKey, chain_ends
from expediter.routing.marks import FINE_TOKENS, TEXT_MARKS, marks_of
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import (
    named_prompt,
    pack_tokens,
    packed_prompt,
    text_prompt,
    token_prompt,
)
from expediter.routing.stem import Stem

BLOCK_SIZE = 2
BLOCK_BYTES = BLOCK_SIZE * BYTES_PER_TOKEN
SPAN_BYTES = SPAN_BLOCKS * BLOCK_BYTES


@given(
    cuts=st.lists(st.tuples(st.integers(0, 4 * SPAN_BYTES), st.integers(0, 255)), max_size=8),
    extras=st.sampled_from([(), (b"salt",), (b"one", b"two")]),
    max_spans=st.integers(1, 8),
)
def test_remembered_spans_give_the_keys_that_hashing_gives(cuts, extras, max_spans) -> None:
    memo, whole = ChainMemo(max_spans=max_spans), random.Random(1).randbytes(5 * SPAN_BYTES)
    for length, changed in cuts:
        data = whole[: length // 2] + bytes([changed]) + whole[length // 2 : length]
        ends = range(BLOCK_BYTES, len(data) + 1, BLOCK_BYTES)
        given_to_both = {"ends": ends, "parent": BlockKey(b"p" * 16), "extras": extras}
        assert memo.chain(data, **given_to_both) == chain_ends(data, **given_to_both)
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


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    block_size=st.integers(1, 20),
    salts=st.lists(st.sampled_from([None, "a", "b", "c", "d", "e"]), min_size=1, max_size=8),
)
def test_a_stems_keys_are_those_of_its_tokens(lengths, block_size, salts) -> None:
    stem: Stem | None = None
    whole, tail = b"", pack_tokens([7] * 9)
    for number, length in enumerate(lengths):
        own = pack_tokens([number * 40 + i for i in range(length)])
        stem, whole = Stem(own, stem), whole + own
        for salt in salts:
            made = packed_prompt(tail, stem=stem, cache_salt=salt)
            plain = packed_prompt(whole + tail, cache_salt=salt)
            assert made.keys(block_size) == plain.keys(block_size)
            assert (made.whole, made.num_tokens) == (plain.whole, plain.num_tokens)


@given(
    common=st.integers(0, 30_000),
    own=st.integers(1, 3000),
    is_text=st.booleans(),
    block_size=st.sampled_from([1, 2, 16, 24, 64, 100, 128]),
)
def test_an_assumed_match_misses_an_eighth_at_the_most(common, own, is_text, block_size) -> None:
    index = PrefixIndex(clock=lambda: 0.0, block_size=block_size, assumed_capacity=10**6)
    index.add_worker(WorkerId("w"))
    whole = random.Random(1).randbytes(BYTES_PER_TOKEN * (common + own))
    data, other = whole[: BYTES_PER_TOKEN * common] + b"!" * own, whole
    first, second = (text_prompt(d) if is_text else packed_prompt(d) for d in (data, other))
    index.assume(WorkerId("w"), first, seconds=5.0)
    matched = index.match(second).get(WorkerId("w"), 0)
    gap = max(FINE_TOKENS + block_size, common / 8 + block_size)
    assert common - gap <= matched <= common


def test_marks_include_where_prefixes_are_counted() -> None:
    for grid in (marks_of(16), marks_of(64), TEXT_MARKS):
        num_marks = grid.num(100_000)
        assert [grid.end(place + 1) for place in grid.multiples(512, num_marks)] == list(
            range(512, 100_000, 512)
        )
