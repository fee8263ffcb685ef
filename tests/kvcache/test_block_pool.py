"""The free queue and the pool: exact orders, with numbers small enough to do by hand."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.kvcache.block import FreeBlockQueue, KVCacheBlock
from expediter.kvcache.block_pool import BlockPool
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved
from expediter.kvcache.hashing import BlockHash
from expediter.kvcache.prefix_cache import HashPrefixCache, PrefixCache
from expediter.kvcache.radix_cache import RadixPrefixCache

CACHES = [HashPrefixCache, RadixPrefixCache]


def chain(text: str) -> list[BlockHash]:
    """Names for "abc": a, ab, abc."""
    return [BlockHash(text[: end + 1].encode()) for end in range(len(text))]


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def hold(pool: BlockPool, text: str) -> list[KVCacheBlock]:
    """A sequence's blocks for `text`: hits first, then new ones, published at once."""
    names = chain(text)
    hits = pool.cache.match(names, limit=len(names))
    pool.touch(hits)
    blocks = pool.allocate(len(names) - len(hits))
    assert blocks is not None
    if blocks:
        pool.cache.insert(names, blocks, start=len(hits))
    return hits + blocks


@given(
    st.lists(st.tuples(st.sampled_from(["cached", "nameless", "pop", "hit"]), st.integers(0, 5)))
)
def test_the_free_queue_is_a_deque(operations: list[tuple[str, int]]) -> None:
    queue, oracle = FreeBlockQueue(6), deque(range(6))
    held: list[KVCacheBlock] = []
    cached: set[int] = set()
    for operation, index in operations:
        if operation == "pop" and oracle:
            held += queue.take_nameless(1) or queue.take_cached(1)
            assert held[-1].block_id == oracle.popleft()
            cached.discard(held[-1].block_id)
        elif operation == "hit" and index in cached:
            queue.remove(queue.made[index])
            held.append(queue.made[index])
            oracle.remove(index)
            cached.remove(index)
        elif operation == "nameless" and held:
            block = held.pop(index % len(held))
            queue.put_nameless([block])
            oracle.appendleft(block.block_id)
        elif operation == "cached" and held:
            block = held.pop(index % len(held))
            queue.put_cached([block])
            oracle.append(block.block_id)
            cached.add(block.block_id)
        assert list(queue.block_ids()) == list(oracle)
        assert len(queue) == len(oracle)


def test_an_empty_queue_has_nothing_to_give() -> None:
    queue = FreeBlockQueue(0)
    assert queue.take_nameless(1) == []
    with pytest.raises(KeyError):
        queue.take_cached(1)


def test_a_block_is_made_when_it_is_first_used() -> None:
    pool = BlockPool(1_000_000, cache=HashPrefixCache())
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.free(blocks)
    pool.allocate(3)
    assert len(pool._free.made) == 3
    assert pool.num_free_blocks == 999_997


@pytest.mark.parametrize("cache", CACHES)
def test_tails_are_evicted_before_heads_and_old_sequences_before_new(
    cache: type[PrefixCache],
) -> None:
    pool = BlockPool(6, cache=cache())
    first, second = hold(pool, "abc"), hold(pool, "xyz")
    assert (ids(first), ids(second)) == ([0, 1, 2], [3, 4, 5])
    pool.free(first)
    pool.free(second)
    order = [pool.allocate(1) for _ in range(6)]
    assert [ids(blocks or []) for blocks in order] == [[2], [1], [0], [5], [4], [3]]
    names = [event.block_hashes for event in pool.events if isinstance(event, BlockRemoved)]
    assert names == [[b"abc"], [b"ab"], [b"a"], [b"xyz"], [b"xy"], [b"x"]]


@pytest.mark.parametrize("cache", CACHES)
def test_a_hit_makes_the_shared_part_recent(cache: type[PrefixCache]) -> None:
    """a b c and a b d: c was used last by the first, a and b by the second."""
    pool = BlockPool(5, cache=cache())
    first = hold(pool, "abc")  # blocks 0 1 2
    second = hold(pool, "abd")  # blocks 0 1 3
    assert ids(second) == [0, 1, 3]
    pool.free(second)  # 0 and 1 are still held
    pool.free(first)
    assert [ids(pool.allocate(1) or []) for _ in range(5)] == [[4], [3], [2], [1], [0]]


def test_blocks_taken_together_rise_in_memory_whatever_order_they_came_free_in() -> None:
    """A prompt's KV is then one run for whoever copies it."""
    pool = BlockPool(6, cache=HashPrefixCache())
    pool.free(hold(pool, "abc"))
    pool.free(hold(pool, "xyz"))
    assert ids(pool.allocate(4) or []) == [0, 1, 2, 5]


@pytest.mark.parametrize("cache", CACHES)
def test_nameless_blocks_are_reused_before_any_cached_one(cache: type[PrefixCache]) -> None:
    pool = BlockPool(4, cache=cache())
    cached = hold(pool, "ab")
    nameless = pool.allocate(2)
    assert nameless is not None
    pool.free(cached)
    pool.free(nameless)
    assert ids(pool.allocate(2) or []) == [2, 3]
    assert len(pool.cache) == 2
    assert not pool.events


@pytest.mark.parametrize("cache", CACHES)
def test_held_blocks_are_never_evicted(cache: type[PrefixCache]) -> None:
    pool = BlockPool(3, cache=cache())
    held = hold(pool, "a")
    assert pool.allocate(3) is None
    assert ids(pool.allocate(2) or []) == [1, 2]
    assert held[0].block_hash == b"a"


@pytest.mark.parametrize("cache", CACHES)
def test_one_allocation_that_evicts_several_says_so_in_one_event(
    cache: type[PrefixCache],
) -> None:
    pool = BlockPool(3, cache=cache())
    pool.free(hold(pool, "abc"))
    pool.allocate(3)
    assert pool.events == [BlockRemoved(block_hashes=[b"abc", b"ab", b"a"])]


def test_freeing_twice_is_caught() -> None:
    pool = BlockPool(1, cache=HashPrefixCache())
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks)


@pytest.mark.parametrize("cache", CACHES)
def test_the_cache_is_cleared_only_when_nobody_holds_a_block(cache: type[PrefixCache]) -> None:
    pool = BlockPool(3, cache=cache())
    held = hold(pool, "ab")
    assert not pool.clear_cache()
    assert len(pool.cache) == 2
    pool.free(held)
    assert pool.clear_cache()
    assert len(pool.cache) == 0
    assert pool.events == [AllBlocksCleared()]
    assert pool.cache.match(chain("ab"), limit=2) == []
    assert pool.num_free_blocks == 3


def test_a_radix_tree_refuses_to_strand_children() -> None:
    cache = RadixPrefixCache()
    blocks = [KVCacheBlock(0), KVCacheBlock(1), KVCacheBlock(2)]
    cache.insert(chain("ab"), blocks[:2], start=0)
    cache.insert(chain("ac"), blocks[2:], start=1)
    with pytest.raises(AssertionError, match="cached children"):
        cache.remove(blocks[:1])
