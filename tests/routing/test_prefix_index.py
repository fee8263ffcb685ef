"""The index against a plain model of what each worker holds, and its promises one by one."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import text_prompt, token_prompt

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def new_index(*workers: WorkerId, block_size: int = 2, capacity: int = 100) -> PrefixIndex:
    index = PrefixIndex(clock=lambda: 0.0, block_size=block_size, assumed_capacity=capacity)
    for worker in workers:
        index.add_worker(worker)
    return index


def engine_hash(worker: WorkerId, tokens: tuple[int, ...]) -> bytes:
    """Every engine has hashes of its own; a prefix's is its tokens and who computed it."""
    return repr((worker, tokens)).encode()


def stored(
    worker: WorkerId, tokens: list[int], *, block_size: int = 2, start: int = 0
) -> BlockStored:
    """The event for the blocks of `tokens` from block `start` on."""
    ends = range((start + 1) * block_size, len(tokens) + 1, block_size)
    first = start * block_size
    return BlockStored(
        block_hashes=[engine_hash(worker, tuple(tokens[:end])) for end in ends],
        parent_block_hash=engine_hash(worker, tuple(tokens[:first])) if start else None,
        token_ids=tokens[first : first + len(ends) * block_size],
        block_size=block_size,
    )


@dataclass
class Oracle:
    """Sets of prefixes by worker, searched one by one."""

    block_size: dict[WorkerId, int]
    held: dict[WorkerId, set[tuple[int, ...]]] = field(default_factory=dict)

    def matched(self, worker: WorkerId, tokens: list[int]) -> int:
        size = self.block_size[worker]
        longest = 0
        for end in range(size, len(tokens), size):  # the last token is never matched
            if tuple(tokens[:end]) not in self.held.get(worker, set()):
                break
            longest = end
        return longest


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=14)
actions = st.lists(
    st.tuples(st.sampled_from([A, B, C]), st.sampled_from(["store", "trim", "clear"]), prompts),
    max_size=25,
)


@given(actions=actions, asked=st.lists(prompts, min_size=1, max_size=5))
def test_every_workers_match_is_what_a_search_block_by_block_finds(actions, asked) -> None:
    sizes = {A: 2, B: 2, C: 3}
    index, oracle = new_index(A, B, C), Oracle(sizes)
    for worker, action, tokens in actions:
        size, held = sizes[worker], oracle.held.setdefault(worker, set())
        if action == "store":
            for block in range(len(tokens) // size):
                prefix = tuple(tokens[: (block + 1) * size])
                if prefix not in held:  # engines announce what is new
                    event = stored(worker, list(prefix), block_size=size, start=block)
                    index.apply(worker, event)
                    held.add(prefix)
        elif action == "trim" and held:
            # As engines evict: a prefix that no other extends.
            leaf = max(held, key=lambda prefix: (len(prefix), prefix))
            held.discard(leaf)
            index.apply(worker, BlockRemoved(block_hashes=[engine_hash(worker, leaf)]))
        elif action == "clear":
            held.clear()
            index.apply(worker, AllBlocksCleared())
    for tokens in asked:
        expected = {w: n for w in sizes if (n := oracle.matched(w, tokens))}
        assert index.match(token_prompt(tokens)) == expected
    assert {w: index.num_blocks(w) for w in sizes} == {
        w: len(oracle.held.get(w, ())) for w in sizes
    }


def test_workers_that_all_hold_another_length_are_told_apart() -> None:
    workers = [WorkerId(f"w{i}") for i in range(200)]
    index, tokens = new_index(*workers), list(range(401))
    for number, worker in enumerate(workers):
        index.apply(worker, stored(worker, tokens[: 2 * number]))
    expected = {worker: 2 * number for number, worker in enumerate(workers) if number}
    assert index.match(token_prompt(tokens)) == expected


def test_engines_with_different_hashes_agree_on_a_prefix() -> None:
    index = new_index(A, B)
    index.apply(A, stored(A, [1, 2, 3, 4]))
    index.apply(B, stored(B, [1, 2, 5, 6]))
    assert index.match(token_prompt([1, 2, 3, 4, 9])) == {A: 4, B: 2}


def test_a_whole_prompt_never_matches_because_its_last_token_is_computed() -> None:
    index = new_index(A)
    index.apply(A, stored(A, [1, 2, 3, 4]))
    assert index.match(token_prompt([1, 2, 3, 4])) == {A: 2}


def test_a_block_whose_parent_is_unknown_is_left_out() -> None:
    index = new_index(A)
    index.apply(A, stored(A, [1, 2, 3, 4], start=1))
    assert index.match(token_prompt([1, 2, 3, 4, 5])) == {}
    assert index.num_unknown_parents == 1


def test_salts_and_adapters_make_different_prefixes() -> None:
    index = new_index(A)
    salted = stored(A, [1, 2, 3, 4])
    index.apply(
        A,
        BlockStored(
            block_hashes=[b"x", b"y"],
            parent_block_hash=None,
            token_ids=salted.token_ids,
            block_size=2,
            lora_name="poet",
            extra_keys=[("poet", "salt"), ("poet",)],
        ),
    )
    tokens = [1, 2, 3, 4, 5]
    assert index.match(token_prompt(tokens, lora_name="poet", cache_salt="salt")) == {A: 4}
    assert index.match(token_prompt(tokens, cache_salt="salt")) == {}
    assert index.match(token_prompt(tokens, lora_name="poet")) == {}
    assert index.match(token_prompt(tokens, lora_name="poet", cache_salt="other")) == {}


def test_different_images_at_the_same_place_are_different_prefixes() -> None:
    index = new_index(A)
    tokens = [7, 7, 1, 2]
    with_image = BlockStored(
        block_hashes=[b"x", b"y"],
        parent_block_hash=None,
        token_ids=tokens,
        block_size=2,
        extra_keys=[(("image-1", 0),), None],
    )
    index.apply(A, with_image)
    assert index.match(token_prompt([*tokens, 3])) == {}


def test_a_worker_that_changes_its_block_size_starts_anew() -> None:
    index = new_index(A)
    index.apply(A, stored(A, [1, 2, 3, 4]))
    index.apply(A, stored(A, [1, 2, 3, 4], block_size=4))
    assert index.num_blocks(A) == 1
    assert index.match(token_prompt([1, 2, 3, 4, 5])) == {A: 4}


def test_an_event_about_a_part_of_a_block_changes_nothing() -> None:
    index = new_index(A)
    index.apply(A, stored(A, [1, 2, 3, 4], block_size=4))
    index.apply(A, stored(A, [9, 9], block_size=2))
    assert index.num_blocks(A) == 1


def test_a_removed_worker_leaves_nothing_and_its_place_is_used_again() -> None:
    index = new_index(A, B)
    index.apply(A, stored(A, [1, 2, 3, 4]))
    index.apply(B, stored(B, [1, 2]))
    index.remove_worker(A)
    index.add_worker(C)
    assert index.match(token_prompt([1, 2, 3, 4, 5])) == {B: 2}
    index.apply(C, stored(C, [1, 2, 3, 4]))
    assert index.match(token_prompt([1, 2, 3, 4, 5])) == {B: 2, C: 4}


def test_a_worker_matches_as_well_as_the_best_of_its_ranks() -> None:
    index = new_index(A)
    rank = WorkerId("a/1")
    index.add_worker(rank, part_of=A)
    index.apply(A, stored(A, [1, 2]))
    index.apply(rank, stored(rank, [1, 2, 3, 4]))
    assert index.match(token_prompt([1, 2, 3, 4, 5])) == {A: 4}


def test_an_assumption_bridges_the_time_until_events_come_and_ends_with_a_removal() -> None:
    index = new_index(A)
    prompt = token_prompt([1, 2, 3, 4, 5])
    index.assume(A, prompt, seconds=5.0)
    assert index.match(prompt) == {A: 4}
    index.apply(A, stored(A, [1, 2, 3, 4]))
    removed = [engine_hash(A, (1, 2, 3, 4)), engine_hash(A, (1, 2))]
    index.apply(A, BlockRemoved(block_hashes=removed))
    assert index.match(prompt) == {}


def test_assumptions_grow_old() -> None:
    now = [0.0]
    index = PrefixIndex(clock=lambda: now[0], block_size=2, assumed_capacity=10)
    index.add_worker(A)
    index.assume(A, token_prompt([1, 2, 3]), seconds=5.0)
    now[0] = 4.0
    index.assume(A, token_prompt([8, 9, 3]), seconds=5.0)
    now[0] = 6.0
    index.expire()
    assert index.match(token_prompt([1, 2, 3])) == {}
    assert index.match(token_prompt([8, 9, 3])) == {A: 2}


@given(st.lists(prompts, max_size=20), st.integers(1, 6))
def test_assumptions_are_bounded_and_never_lose_a_head_before_its_tail(asked, capacity) -> None:
    index = new_index(A, capacity=capacity)
    for tokens in asked:
        index.assume(A, token_prompt(tokens), seconds=5.0)
        assert index.num_assumed_blocks(A) <= capacity
        # What was just assumed is there, as far as there is room.
        usable = min(capacity, (len(tokens) - 1) // 2) * 2
        assert index.match(token_prompt(tokens)).get(A, 0) == usable
    index.clear(A)
    assert index.num_assumed_blocks(A) == 0
    assert all(index.match(token_prompt(tokens)) == {} for tokens in asked)


def test_text_matches_text_in_blocks_and_never_tokens() -> None:
    index = new_index(A, block_size=2)
    first, second = "abcdefgh" * 32, "ijklmnop" * 32  # 64 tokens each, at four bytes a token
    index.assume(A, text_prompt(first + second), seconds=5.0)
    assert index.match(text_prompt(first + "X" * 300)) == {A: 64}
    assert index.match(text_prompt(first + second + " and more")) == {A: 128}
    assert index.match(text_prompt(first + second + " and more", cache_salt="s")) == {}


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_a_prompts_keys_extend_its_prefixes_keys(tokens) -> None:
    keys = token_prompt(tokens).keys(4)
    for end in range(0, len(tokens) + 1, 4):
        assert token_prompt(tokens[:end]).keys(4) == keys[: end // 4]
    assert len(set(keys)) == len(keys)


def test_a_token_id_beyond_32_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        token_prompt([2**32])
