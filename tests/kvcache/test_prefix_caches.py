"""Two prefix caches, one contract: whatever is done to both, they answer the same."""

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from expediter.kvcache.block_pool import BlockPool
from expediter.kvcache.hashing import BlockHash
from expediter.kvcache.prefix_cache import HashPrefixCache, PrefixCache
from expediter.kvcache.radix_cache import RadixPrefixCache

if TYPE_CHECKING:
    from expediter.kvcache.run import Run

NUM_BLOCKS = 12
prompts = st.text(alphabet="ab", min_size=1, max_size=9)


def chain(text: str) -> list[BlockHash]:
    return [BlockHash(text[: end + 1].encode()) for end in range(len(text))]


class Pair:
    """One pool and the sequences that hold its blocks."""

    def __init__(self, cache: PrefixCache) -> None:
        self.pool = BlockPool(NUM_BLOCKS, cache=cache)
        self.held: list[tuple[Run, list[int]]] = []  # paths, and nameless blocks after them

    def hold(self, text: str, num_computed: int) -> object:
        """Hit, allocate, publish the first `num_computed`; all or nothing."""
        names, pool = chain(text), self.pool
        run, num_hits, num_beyond = pool.cache.match(names, limit=len(names))
        num_pinned = pool.num_unheld(run, num_beyond=num_beyond)
        num_free = pool.num_free_blocks
        run = pool.hold(run, num_beyond=num_beyond)
        assert pool.num_free_blocks == num_free - num_pinned
        hits = run.path_ids()
        assert len(hits) == num_hits
        new = pool.allocate(len(names) - num_hits)
        if new is None:
            pool.release(run)
            return None
        num_stored = max(0, min(num_computed, len(names)) - num_hits)
        if num_stored:
            run = pool.cache.insert(run, names[num_hits:][:num_stored], new[:num_stored])
        self.held.append((run, new[num_stored:]))
        return hits + new

    def free(self, index: int) -> None:
        run, nameless = self.held.pop(index % len(self.held))
        self.pool.give_back(nameless)
        self.pool.release(run)


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
                pair.free(index)

    @rule(text=prompts, limit=st.integers(0, 9), start=st.integers(0, 9))
    def look_up(self, text: str, limit: int, start: int) -> None:
        names = chain(text)
        limit = min(limit, len(names))
        start = min(start, limit)
        self.agree([self.matched(pair.pool.cache, names, limit, start) for pair in self.pairs])

    def matched(
        self, cache: PrefixCache, names: list[BlockHash], limit: int, start: int
    ) -> list[int]:
        """The blocks of a match, found at once, or from the middle of it on."""
        version = cache.version
        match = cache.match(names, limit=limit)
        ids = match.run.path_ids()
        ids = ids[: len(ids) - match.num_beyond]
        assert len(ids) == match.num_blocks
        begin = cache.match(names, limit=start)
        if not begin.num_beyond:
            rest = cache.match(names, limit=limit, after=begin.run, start=begin.num_blocks)
            assert rest == match
        assert cache.version == version
        return ids

    @rule()
    def clear(self) -> None:
        self.agree([pair.pool.clear_cache() for pair in self.pairs])

    @invariant()
    def they_hold_the_same(self) -> None:
        self.agree([len(pair.pool.cache) for pair in self.pairs])
        self.agree([list(pair.pool.free_block_ids()) for pair in self.pairs])
        self.agree([pair.pool.events for pair in self.pairs])
        self.agree([self.names(pair.pool.cache) for pair in self.pairs])

    def names(self, cache: PrefixCache) -> set[BlockHash]:
        """All that the cache holds; a parent's name is here a name without its last letter."""
        assert isinstance(cache, HashPrefixCache | RadixPrefixCache)
        todo = [cache.root] if isinstance(cache, RadixPrefixCache) else list(cache._runs.values())
        for run in todo:
            todo += run.children.values()
        names = [name for run in todo for name in run.names]
        assert len(names) == len(set(names)) == len(cache)
        assert all(len(name) == 1 or name[:-1] in names for name in names)
        return set(names)


TestPrefixCachesAgree = PrefixCachesAgree.TestCase
TestPrefixCachesAgree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
