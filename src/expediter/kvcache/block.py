"""A slot's worth of KV, and the order in which free ones are reused.

The queue is a doubly linked list threaded through the blocks themselves, so a block in its
middle can be taken out, when a prompt hits it, without looking for it. The design is vLLM's
(vllm/v1/core/kv_cache_utils.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expediter.kvcache.hashing import BlockHash


class KVCacheBlock:
    """Room for the KV of `block_size` tokens; `block_hash` is set while it can be found."""

    __slots__ = ("block_hash", "block_id", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0  # holders; a free block has none and is in the free queue
        self.block_hash: BlockHash | None = None
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        name = self.block_hash.hex()[:8] if self.block_hash else "-"
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={name})"


class FreeBlockQueue:
    """Free blocks, the next to be reused first. Every operation takes constant time."""

    def __init__(self) -> None:
        self._num_blocks = 0
        # One ring through a block that is nobody's: no end needs a special case.
        self._end = KVCacheBlock(-1)
        self._end.prev_free = self._end.next_free = self._end

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._end.next_free
        while block is not self._end:
            assert block is not None
            yield block
            block = block.next_free

    def popleft(self) -> KVCacheBlock:
        """Take out the first block; `IndexError` when there is none."""
        block = self._end.next_free
        if block is None or block is self._end:
            raise IndexError("no free block")
        self.remove(block)
        return block

    def append(self, block: KVCacheBlock) -> None:
        """Put a block last."""
        self._insert_before(self._end, block)

    def appendleft(self, block: KVCacheBlock) -> None:
        """Put a block first."""
        first = self._end.next_free
        assert first is not None
        self._insert_before(first, block)

    def remove(self, block: KVCacheBlock) -> None:
        """Take out a block that is in the queue."""
        before, after = block.prev_free, block.next_free
        assert before is not None, f"{block} is not free"
        assert after is not None, f"{block} is not free"
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self._num_blocks -= 1

    def _insert_before(self, after: KVCacheBlock, block: KVCacheBlock) -> None:
        assert block.next_free is None, f"{block} is free already"
        before = after.prev_free
        assert before is not None
        block.prev_free, block.next_free = before, after
        before.next_free = after.prev_free = block
        self._num_blocks += 1
