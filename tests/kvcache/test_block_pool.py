"""The free queue and the pool: exact orders, with numbers small enough to do by hand."""

from collections import Counter, deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.kvcache.block_pool import BlockPool
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved
from expediter.kvcache.hashing import BlockHash
from expediter.kvcache.prefix_cache import HashPrefixCache, PrefixCache
from expediter.kvcache.radix_cache import RadixPrefixCache
from expediter.kvcache.run import Run

CACHES = [HashPrefixCache, RadixPrefixCache]


def chain(text: str) -> list[BlockHash]:
    """Names for "abc": a, ab, abc."""
    return [BlockHash(text[: end + 1].encode()) for end in range(len(text))]


class Held(NamedTuple):
    """A sequence's blocks: the cached path to `run`."""

    run: Run
    block_ids: list[int]


def hold(pool: BlockPool, text: str) -> Held:
    """A sequence for `text`: hits first, then new blocks, published at once."""
    names = chain(text)
    run, num_hits, num_beyond = pool.cache.match(names, limit=len(names))
    run = pool.hold(run, num_beyond=num_beyond)
    hits = run.path_ids()
    block_ids = pool.allocate(len(names) - num_hits)
    assert block_ids is not None
    if block_ids:
        run = pool.cache.insert(run, names[num_hits:], block_ids)
    return Held(run, hits + block_ids)


class OneByOne:
    """The order of reuse as a queue of single blocks: what the pool is to be the same as."""

    def __init__(self, num_blocks: int) -> None:
        self.free = deque(range(num_blocks))
        self.holders: Counter[int] = Counter()
        self.name_of: dict[int, BlockHash] = {}

    def hold(self, names: list[BlockHash]) -> list[int] | None:
        """Hits, then blocks from the front of the queue; None if there are too few."""
        block_of = {name: block_id for block_id, name in self.name_of.items()}
        hits = [block_of[name] for name in names if name in block_of]
        free = deque(block_id for block_id in self.free if block_id not in hits)
        num_new = len(names) - len(hits)
        if num_new > len(free):
            return None
        new = sorted(free.popleft() for _ in range(num_new))
        self.free = free
        for block_id, name in zip(new, names[len(hits) :], strict=True):
            self.name_of[block_id] = name
        self.holders.update(hits + new)
        return hits + new

    def release(self, block_ids: list[int]) -> None:
        """Tails first; nobody's block goes to the end of the queue."""
        for block_id in reversed(block_ids):
            self.holders[block_id] -= 1
            if not self.holders[block_id]:
                self.free.append(block_id)


@pytest.mark.parametrize("cache", CACHES)
@given(
    st.lists(st.tuples(st.sampled_from(["hold", "release"]), st.text("ab", min_size=1, max_size=6)))
)
def test_runs_are_reused_in_the_order_of_their_single_blocks(
    cache: type[PrefixCache], operations: list[tuple[str, str]]
) -> None:
    pool, oracle = BlockPool(8, cache=cache()), OneByOne(8)
    held: dict[str, list[Held]] = {}
    for operation, text in operations:
        if operation == "hold":
            expected = oracle.hold(chain(text))
            if expected is None:
                continue
            held.setdefault(text, []).append(hold(pool, text))
            assert held[text][-1].block_ids == expected
        elif held.get(text):
            run, block_ids = held[text].pop()
            pool.release(run)
            oracle.release(block_ids)
        assert list(pool.free_block_ids()) == list(oracle.free)
        assert pool.num_free_blocks == len(oracle.free)


def test_nameless_blocks_are_a_stack() -> None:
    """The first of those given back is the next to be used, before any that never was."""
    pool = BlockPool(6, cache=HashPrefixCache())
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.give_back([2, 3])
    pool.give_back([1, 0])
    assert list(pool.free_block_ids()) == [1, 0, 2, 3, 4, 5]
    assert [pool.allocate(1), pool.allocate(4)] == [[1], [0, 2, 3, 4]]


def test_an_empty_pool_has_nothing_to_give() -> None:
    pool = BlockPool(0, cache=HashPrefixCache())
    assert pool.allocate(0) == []
    assert pool.allocate(1) is None


def test_a_nameless_block_is_free_when_its_last_holder_has_given_it_back() -> None:
    pool = BlockPool(3, cache=HashPrefixCache())
    assert pool.allocate(2) == [0, 1]
    pool.share([0])
    pool.share([0])
    pool.give_back([0, 1])
    assert list(pool.free_block_ids()) == [1, 2]
    pool.unshare([0])
    pool.give_back([0])
    assert list(pool.free_block_ids()) == [0, 1, 2]
    with pytest.raises(AssertionError, match="one holder"):
        pool.unshare([0])


@pytest.mark.parametrize("cache", CACHES)
def test_tails_are_evicted_before_heads_and_old_sequences_before_new(
    cache: type[PrefixCache],
) -> None:
    pool = BlockPool(6, cache=cache())
    first, second = hold(pool, "abc"), hold(pool, "xyz")
    assert (first.block_ids, second.block_ids) == ([0, 1, 2], [3, 4, 5])
    pool.release(first.run)
    pool.release(second.run)
    assert [pool.allocate(1) for _ in range(6)] == [[2], [1], [0], [5], [4], [3]]
    names = [event.block_hashes for event in pool.events if isinstance(event, BlockRemoved)]
    assert names == [[b"abc"], [b"ab"], [b"a"], [b"xyz"], [b"xy"], [b"x"]]


@pytest.mark.parametrize("cache", CACHES)
def test_a_hit_makes_the_shared_part_recent(cache: type[PrefixCache]) -> None:
    """a b c and a b d: c was used last by the first, a and b by the second."""
    pool = BlockPool(5, cache=cache())
    first = hold(pool, "abc")  # blocks 0 1 2
    second = hold(pool, "abd")  # blocks 0 1 3
    assert second.block_ids == [0, 1, 3]
    pool.release(second.run)  # 0 and 1 are still held
    pool.release(first.run)
    assert [pool.allocate(1) for _ in range(5)] == [[4], [3], [2], [1], [0]]


def test_blocks_taken_together_rise_in_memory_whatever_order_they_came_free_in() -> None:
    """A prompt's KV is then one run for whoever copies it."""
    pool = BlockPool(6, cache=HashPrefixCache())
    pool.release(hold(pool, "abc").run)
    pool.release(hold(pool, "xyz").run)
    assert pool.allocate(4) == [0, 1, 2, 5]


@pytest.mark.parametrize("cache", CACHES)
def test_nameless_blocks_are_reused_before_any_cached_one(cache: type[PrefixCache]) -> None:
    pool = BlockPool(4, cache=cache())
    cached = hold(pool, "ab")
    nameless = pool.allocate(2)
    assert nameless is not None
    pool.release(cached.run)
    pool.give_back(nameless)
    assert pool.allocate(2) == [2, 3]
    assert len(pool.cache) == 2
    assert not pool.events


@pytest.mark.parametrize("cache", CACHES)
def test_held_blocks_are_never_evicted(cache: type[PrefixCache]) -> None:
    pool = BlockPool(3, cache=cache())
    held = hold(pool, "a")
    assert pool.allocate(3) is None
    assert pool.allocate(2) == [1, 2]
    assert pool.cache.match(chain("a"), limit=1) == (held.run, 1, 0)


@pytest.mark.parametrize("cache", CACHES)
def test_one_allocation_that_evicts_several_says_so_in_one_event(
    cache: type[PrefixCache],
) -> None:
    pool = BlockPool(3, cache=cache())
    pool.release(hold(pool, "abc").run)
    pool.allocate(3)
    assert pool.events == [BlockRemoved(block_hashes=[b"abc", b"ab", b"a"])]


@pytest.mark.parametrize("cache", CACHES)
def test_releasing_twice_is_caught(cache: type[PrefixCache]) -> None:
    pool = BlockPool(1, cache=cache())
    held = hold(pool, "a")
    pool.release(held.run)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(held.run)


@pytest.mark.parametrize("cache", CACHES)
def test_the_cache_is_cleared_only_when_nobody_holds_a_block(cache: type[PrefixCache]) -> None:
    pool = BlockPool(3, cache=cache())
    held = hold(pool, "ab")
    assert not pool.clear_cache()
    assert len(pool.cache) == 2
    pool.release(held.run)
    assert pool.clear_cache()
    assert len(pool.cache) == 0
    assert pool.events == [AllBlocksCleared()]
    assert pool.cache.match(chain("ab"), limit=2) == (pool.cache.root, 0, 0)
    assert list(pool.free_block_ids()) == [1, 0, 2]
    assert hold(pool, "ab").block_ids == [0, 1]


def test_a_radix_tree_refuses_to_strand_children() -> None:
    cache = RadixPrefixCache()
    parent = cache.insert(cache.root, chain("ab"), [0, 1])
    first = cache.cut(parent, 1)
    cache.insert(first, chain("ac")[1:], [2])
    with pytest.raises(AssertionError, match="cached children"):
        cache.remove(first, 1)
