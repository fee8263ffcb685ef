"""Who holds which block, and which block is reused next.

A block with holders is pinned. One without is free, but stays cached until its slot is
needed: free and cached are not opposites. Nameless free blocks are reused first, then cached
ones, least recently used first.

Why no cached block is ever evicted before its cached children. Everyone who holds a block
found or put in the cache also holds its parent, the cached block with the parent's name,
because there is one block a name and a sequence holds its path from the root. Whoever frees
both frees the child first. So a child never has more recent holders than its parent: it is
nearer the front of the queue whenever both are free, and free whenever the parent is.
"""

from collections.abc import Sequence
from operator import attrgetter

from expediter.kvcache.block import FreeBlockQueue, KVCacheBlock
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, KVCacheEvent
from expediter.kvcache.prefix_cache import PrefixCache

_by_id = attrgetter("block_id")


class BlockPool:
    """All blocks of a worker. `events` collects what left the cache, for the owner to take."""

    def __init__(self, num_blocks: int, *, cache: PrefixCache) -> None:
        self.num_total_blocks = num_blocks
        self.cache = cache
        self.events: list[KVCacheEvent] = []
        self._free = FreeBlockQueue(num_blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.num_total_blocks - len(self._free)

    def allocate(self, num_blocks: int) -> list[KVCacheBlock] | None:
        """Blocks with one holder, no name, rising ids, evicting what must go; None if too few."""
        if num_blocks > len(self._free):
            return None
        blocks = self._free.take_nameless(num_blocks)
        if len(blocks) < num_blocks:
            evicted = self._free.take_cached(num_blocks - len(blocks))
            self.events.append(BlockRemoved(block_hashes=self.cache.remove(evicted)))
            blocks += evicted
        # Neighbours in one direction are one run of memory, for whoever copies a prompt's KV.
        blocks.sort(key=_by_id)
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add a holder to each block; those that were free leave the free queue."""
        for block in blocks:
            if block.ref_cnt == 0:
                self._free.remove(block)
            block.ref_cnt += 1

    def free(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take a holder from each block of a sequence; those without one become reusable."""
        named: list[KVCacheBlock] = []
        nameless: list[KVCacheBlock] = []
        # Tails first: evicting a parent would strand its children.
        for block in reversed(blocks):
            num_left = block.ref_cnt - 1
            assert num_left >= 0, f"{block} is freed twice"
            block.ref_cnt = num_left
            if not num_left:
                (nameless if block.block_hash is None else named).append(block)
        self._free.put_nameless(nameless)
        self._free.put_cached(named)

    def clear_cache(self) -> bool:
        """Forget every prefix; False, and nothing changes, while any block is held."""
        if self.num_used_blocks:
            return False
        self.cache.clear()
        for block in self._free.made:
            block.block_hash = None
        self._free.forget_names()
        self.events.append(AllBlocksCleared())
        return True
