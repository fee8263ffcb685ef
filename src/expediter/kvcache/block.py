"""A slot's worth of KV, and the order in which free ones are reused.

The queue is a linked list, so a block in its middle can be taken out, when a prompt hits it,
without looking for it. The design is vLLM's (vllm/v1/core/kv_cache_utils.py); the list here is
Python's ordered dict, whose links are in C.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
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
    """Free blocks, the next to be reused first. Every operation takes constant time a block."""

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._blocks = OrderedDict.fromkeys(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._blocks)

    def popleft(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take out the first blocks; there must be so many."""
        pop = self._blocks.popitem
        return [pop(False)[0] for _ in range(num_blocks)]

    def extend(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks last, in order."""
        queue = self._blocks
        for block in blocks:
            queue[block] = None

    def extendleft(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put each block first; the last of them is then the next to be reused."""
        queue = self._blocks
        for block in blocks:
            queue[block] = None
            queue.move_to_end(block, last=False)

    def remove(self, block: KVCacheBlock) -> None:
        """Take out a block that is in the queue."""
        del self._blocks[block]
