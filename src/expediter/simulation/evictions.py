"""What evictions cost: blocks that enter a cache again after they had to leave it."""

from collections.abc import Sequence

from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent


class Evictions:
    """A listener of one worker's events; counts tokens that were cached, evicted and cached again.

    Names of evicted blocks are remembered up to twice to four times the size of the cache, in two
    generations: when the young one is full, it becomes the old one, and the old one is forgotten.
    """

    def __init__(self, *, num_blocks: int) -> None:
        self._limit = 2 * num_blocks
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()
        self.num_recomputed_tokens = 0

    def __call__(self, events: Sequence[KVCacheEvent]) -> None:
        """Learn of events, in order."""
        for event in events:
            match event:
                case BlockStored():
                    if self._young or self._old:
                        self._store(event)
                case BlockRemoved():
                    self._remove(event.block_hashes)
                case AllBlocksCleared():  # a restart is no eviction
                    self._young.clear()
                    self._old.clear()

    def _remove(self, names: Sequence[bytes]) -> None:
        if len(self._young) >= self._limit:
            self._young, self._old = set(), self._young
        self._young.update(names)

    def _store(self, event: BlockStored) -> None:
        known = len(self._young) + len(self._old)
        self._young.difference_update(event.block_hashes)
        self._old.difference_update(event.block_hashes)
        num_again = known - len(self._young) - len(self._old)
        self.num_recomputed_tokens += num_again * event.block_size
