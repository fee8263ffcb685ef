"""Who holds which block, and which block is reused next.

A block with holders is pinned. One without is free, but stays cached until its slot is
needed: free and cached are not opposites. Nameless free blocks are reused first, then those never
used, then cached ones, least recently used first and tails before heads.

Cached blocks are held as runs of a path (`run.py`), nameless ones by their number. A run that
nobody holds any more goes to the end of a queue, before its parent does, and is eaten up from
its own end when it has come to the front. One that is hit leaves the queue's middle: an ordered
dict finds it, with its links in C. So the order is the one of vLLM's queue of single blocks
(vllm/v1/core/kv_cache_utils.py).

Why no cached block is ever evicted before its cached children. A run that is held holds its
parent, so a child never has more recent holders than its parent: it is nearer the front of the
queue whenever both are free, and free whenever the parent is.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, KVCacheEvent
from expediter.kvcache.prefix_cache import PrefixCache
from expediter.kvcache.run import Run

if TYPE_CHECKING:
    from expediter.kvcache.hashing import BlockHash


class BlockPool:
    """All blocks of a worker. `events` collects what left the cache, for the owner to take.

    `num_free_blocks` counts those that nobody holds, cached or not.
    """

    def __init__(self, num_blocks: int, *, cache: PrefixCache) -> None:
        self.num_total_blocks = num_blocks
        self.num_free_blocks = num_blocks
        self.cache = cache
        self.events: list[KVCacheEvent] = []
        self._num_made = 0  # the others were never used
        self._nameless: list[int] = []  # free ones; the last is the next
        self._runs: OrderedDict[Run, None] = OrderedDict()  # those without holders
        self._num_more: dict[int, int] = {}  # holders of nameless blocks that have several

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.num_total_blocks - self.num_free_blocks

    def free_block_ids(self) -> Iterator[int]:
        """All free blocks, the next to be reused first."""
        yield from reversed(self._nameless)
        yield from range(self._num_made, self.num_total_blocks)
        for run in self._runs:
            yield from reversed(run.block_ids)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Nameless blocks with one holder, in rising order, evicting what must go; None if too few.

        Neighbours in one direction are one run of memory, for whoever copies a prompt's KV.
        """
        if num_blocks > self.num_free_blocks:
            return None
        self.num_free_blocks -= num_blocks
        nameless, num_made = self._nameless, self._num_made
        if not nameless and num_made + num_blocks <= self.num_total_blocks:
            self._num_made += num_blocks
            return list(range(num_made, num_made + num_blocks))
        block_ids = nameless[-num_blocks:] if num_blocks else []
        del nameless[len(nameless) - len(block_ids) :]
        num_missing = num_blocks - len(block_ids)
        if num_missing and num_made < self.num_total_blocks:
            self._num_made = end = min(num_made + num_missing, self.num_total_blocks)
            block_ids += range(num_made, end)
            num_missing = num_blocks - len(block_ids)
        if num_missing:
            block_ids += self._evict(num_missing)
        block_ids.sort()
        return block_ids

    def share(self, block_ids: Sequence[int]) -> None:
        """Add a holder to nameless blocks that have one."""
        for block_id in block_ids:
            self._num_more[block_id] = self._num_more.get(block_id, 0) + 1

    def give_back(self, block_ids: Sequence[int]) -> None:
        """Take a holder from nameless blocks; the first that is free then is reused next."""
        if self._num_more:
            block_ids = [block_id for block_id in block_ids if not self._unshare(block_id)]
        self._nameless += reversed(block_ids)
        self.num_free_blocks += len(block_ids)

    def unshare(self, block_ids: Sequence[int]) -> None:
        """Take one of several holders from nameless blocks."""
        for block_id in block_ids:
            is_shared = self._unshare(block_id)
            assert is_shared, f"block {block_id} has one holder"

    def hold(self, run: Run, *, num_beyond: int = 0) -> Run:
        """Add a holder to a path, up to the last `num_beyond` blocks; the run it then ends with."""
        if num_beyond:
            run = self.cache.cut(run, num_beyond)
        end = run
        while not run.num_holders:
            run.num_holders = 1
            self._runs.pop(run, None)  # what was split off was in no queue
            self.num_free_blocks -= len(run.block_ids)
            assert run.parent is not None, "the root is always held"
            run = run.parent
        run.num_holders += 1
        return end

    def release(self, run: Run) -> None:
        """Take a holder from a path; its runs without one become reusable, tails first."""
        while True:
            run.num_holders -= 1
            if run.num_holders:
                assert run.num_holders > 0, f"{run} is released twice"
                return
            self._runs[run] = None
            self.num_free_blocks += len(run.block_ids)
            assert run.parent is not None, "the root is always held"
            run = run.parent

    def num_unheld(self, run: Run, *, num_beyond: int) -> int:
        """Blocks of the path, without the last ones, that `hold` would take from the free ones."""
        num_blocks = -num_beyond if not run.num_holders else 0
        while not run.num_holders:
            num_blocks += len(run.block_ids)
            assert run.parent is not None, "the root is always held"
            run = run.parent
        return num_blocks

    def clear_cache(self) -> bool:
        """Forget every prefix; False, and nothing changes, while any block is held."""
        if self.num_used_blocks:
            return False
        self.cache.clear()
        cached = [block_id for run in self._runs for block_id in reversed(run.block_ids)]
        self._nameless[:0] = reversed(cached)  # in the same order as before
        self._runs.clear()
        self.events.append(AllBlocksCleared())
        return True

    def _evict(self, num_blocks: int) -> list[int]:
        """Take out the first cached blocks; there must be so many."""
        block_ids: list[int] = []
        names: list[BlockHash] = []
        while num_blocks:
            run = next(iter(self._runs))
            num_taken = min(num_blocks, len(run.block_ids))
            names += self.cache.remove(run, num_taken)
            block_ids += run.block_ids[-num_taken:]
            del run.block_ids[-num_taken:]
            if not run.block_ids:
                del self._runs[run]
            num_blocks -= num_taken
        self.events.append(BlockRemoved(block_hashes=names))
        return block_ids

    def _unshare(self, block_id: int) -> bool:
        """Whether somebody still holds it."""
        num_more = self._num_more.pop(block_id, 0)
        if num_more > 1:
            self._num_more[block_id] = num_more - 1
        return num_more > 0
