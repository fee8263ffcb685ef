"""Two prefix caches, one contract: whatever is done to both, they answer the same."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from expediter.kvcache.block import KVCacheBlock
from expediter.kvcache.block_pool import BlockPool
from expediter.kvcache.hashing import BlockHash
from expediter.kvcache.prefix_cache import HashPrefixCache, PrefixCache
from expediter.kvcache.radix_cache import RadixPrefixCache

NUM_BLOCKS = 12
prompts = st.text(alphabet="ab", min_size=1, max_size=9)


def chain(text: str) -> list[BlockHash]:
    return [BlockHash(text[: end + 1].encode()) for end in range(len(text))]


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


class Pair:
    """One pool and the sequences that hold its blocks."""

    def __init__(self, cache: PrefixCache) -> None:
        self.pool = BlockPool(NUM_BLOCKS, cache=cache)
        self.held: list[list[KVCacheBlock]] = []

    def hold(self, text: str, num_computed: int) -> object:
        """Hit, allocate, publish the first `num_computed`; all or nothing."""
        names, cache = chain(text), self.pool.cache
        hits = cache.match(names, limit=len(names))
        self.pool.touch(hits)
        blocks = self.pool.allocate(len(names) - len(hits))
        if blocks is None:
            self.pool.free(hits)
            return None
        end = max(len(hits), min(num_computed, len(names)))
        if end > len(hits):
            cache.insert(names, blocks[: end - len(hits)], start=len(hits))
        self.held.append(hits + blocks)
        return ids(hits + blocks)


class PrefixCachesAgree(RuleBasedStateMachine):
    """Drives a hash table and a radix tree with the same pool around them."""

    @initialize()
    def start(self) -> None:
        self.pairs = [Pair(HashPrefixCache()), Pair(RadixPrefixCache())]

    def agree(self, answers: list[object]) -> None:
        assert answers[0] == answers[1]

    @rule(text=prompts, num_computed=st.integers(0, 9))
    def hold(self, text: str, num_computed: int) -> None:
        self.agree([pair.hold(text, num_computed) for pair in self.pairs])

    @rule(index=st.integers(0, 20))
    def free(self, index: int) -> None:
        for pair in self.pairs:
            if pair.held:
                pair.pool.free(pair.held.pop(index % len(pair.held)))

    @rule(text=prompts, limit=st.integers(0, 9), start=st.integers(0, 9))
    def look_up(self, text: str, limit: int, start: int) -> None:
        names = chain(text)
        limit = min(limit, len(names))
        lengths = [p.pool.cache.match_length(names, limit=limit) for p in self.pairs]
        self.agree(lengths)
        start = min(start, lengths[0])
        for pair in self.pairs:
            cache = pair.pool.cache
            version = cache.version
            found = cache.match(names, limit=limit, start=start)
            assert [block.block_hash for block in found] == names[start : lengths[0]]
            assert cache.match_length(names, limit=limit, start=start) == lengths[0]
            assert cache.version == version

    @rule()
    def clear(self) -> None:
        self.agree([pair.pool.clear_cache() for pair in self.pairs])

    @invariant()
    def they_hold_the_same(self) -> None:
        self.agree([len(pair.pool.cache) for pair in self.pairs])
        self.agree([list(pair.pool._free.block_ids()) for pair in self.pairs])
        self.agree([pair.pool.events for pair in self.pairs])
        for pair in self.pairs:
            names = {block.block_hash for block in pair.pool._free.made if block.block_hash}
            assert len(names) == len(pair.pool.cache)
            # Names are spelled out here, so a parent is a name without its last letter.
            assert all(len(name) == 1 or name[:-1] in names for name in names)


TestPrefixCachesAgree = PrefixCachesAgree.TestCase
TestPrefixCachesAgree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
