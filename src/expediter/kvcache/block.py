"""A slot's worth of KV, and the order in which free ones are reused.

A cached block can be taken out of the queue's middle, when a prompt hits it, without looking for
it. The design is vLLM's (vllm/v1/core/kv_cache_utils.py), with Python's ordered dict, whose links
are in C, for the linked list. Blocks without a name are never looked for, so they need only a
stack; and most of a large memory may never be used, so a block is made when it first is.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expediter.kvcache.hashing import BlockHash


class KVCacheBlock:
    """Room for the KV of `block_size` tokens; `block_hash` is set while it can be found."""

    __slots__ = ("block_hash", "block_id", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0  # holders; a free block has none and is in the free queue
        self.block_hash: BlockHash | None = None

    def __repr__(self) -> str:
        name = self.block_hash.hex()[:8] if self.block_hash else "-"
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={name})"


class FreeBlockQueue:
    """Free blocks in order of reuse: nameless ones, those never used, cached ones.

    Every operation takes constant time a block. `made` holds the blocks used so far by their ids.
    """

    def __init__(self, num_blocks: int) -> None:
        self.made: list[KVCacheBlock] = []
        self._num_blocks = num_blocks
        self._nameless: list[KVCacheBlock] = []  # the last is the next
        self._cached: OrderedDict[int, KVCacheBlock] = OrderedDict()  # by id

    def __len__(self) -> int:
        return len(self._nameless) + self._num_blocks - len(self.made) + len(self._cached)

    def block_ids(self) -> Iterator[int]:
        """All ids, the next to be reused first."""
        unused = range(len(self.made), self._num_blocks)
        nameless = (block.block_id for block in reversed(self._nameless))
        return chain(nameless, unused, self._cached)

    def take_nameless(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take out the first blocks, as many as need not be evicted."""
        blocks: list[KVCacheBlock] = []
        if self._nameless:
            blocks = self._nameless[: -num_blocks - 1 : -1]
            del self._nameless[-len(blocks) :]
        num_made, num_missing = len(self.made), num_blocks - len(blocks)
        if num_missing and num_made < self._num_blocks:
            end = min(num_made + num_missing, self._num_blocks)
            new = list(map(KVCacheBlock, range(num_made, end)))
            self.made += new
            blocks += new
        return blocks

    def take_cached(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take out the first cached blocks; there must be so many."""
        pop = self._cached.popitem
        return [pop(False)[1] for _ in range(num_blocks)]

    def put_nameless(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put each block first; the last of them is then the next to be reused."""
        self._nameless.extend(blocks)

    def put_cached(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks last, in order."""
        queue = self._cached
        for block in blocks:
            queue[block.block_id] = block

    def remove(self, block: KVCacheBlock) -> None:
        """Take out a cached block that is in the queue."""
        del self._cached[block.block_id]

    def forget_names(self) -> None:
        """The cached blocks are nameless from now on; their order stays."""
        self._nameless[:0] = reversed(self._cached.values())
        self._cached.clear()
