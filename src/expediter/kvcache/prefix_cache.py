"""Which block holds which prefix.

A cache maps names to blocks, one block a name. Because a name covers its parent's, a chain of
names is a path from the root, and the cache keeps that shape: whenever a name is in it, so
are all names before it on its path. Two facts follow. Of any chain it holds exactly a first
part, so the end of a match can be found by bisection; and a block may only leave when no
child of it is left.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from expediter.kvcache.block import KVCacheBlock
from expediter.kvcache.hashing import BlockHash


class PrefixCache(Protocol):
    """Names to blocks. A chain is a prompt's block hashes, in order from its first block.

    Nothing here knows about reference counts or recency; `BlockPool` does, and so decides what
    leaves and when. `version` changes with every change of what is cached.
    """

    version: int

    def __len__(self) -> int:
        """How many blocks are cached."""
        ...

    def match_length(self, chain: Sequence[BlockHash], *, limit: int, start: int = 0) -> int:
        """How many of the first `limit` names are cached, given that `start` of them are.

        Changes nothing. The answer holds while `version` does.
        """
        ...

    def match(
        self, chain: Sequence[BlockHash], *, limit: int, start: int = 0
    ) -> list[KVCacheBlock]:
        """The blocks from `start` to the end of the match.

        Changes nothing. Each block keeps its content until it is removed, which the caller
        prevents by holding a reference.
        """
        ...

    def insert(
        self, chain: Sequence[BlockHash], blocks: Sequence[KVCacheBlock], *, start: int
    ) -> None:
        """Name `blocks` after `chain[start:]`, in order, and make them findable.

        The names before `start` must be cached, the new ones must not.
        """
        ...

    def remove(self, blocks: Sequence[KVCacheBlock]) -> list[BlockHash]:
        """Forget cached blocks, children before their parents; the names they had."""
        ...

    def clear(self) -> None:
        """Forget all names. The blocks' own `block_hash` is the caller's to reset."""
        ...


class HashPrefixCache:
    """The cache as a hash table from name to block, as in vLLM."""

    def __init__(self) -> None:
        self.version = 0
        self._blocks: dict[BlockHash, KVCacheBlock] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def match_length(self, chain: Sequence[BlockHash], *, limit: int, start: int = 0) -> int:
        """See `PrefixCache`; a logarithmic number of look-ups, one where nothing matches."""
        blocks = self._blocks
        if start >= limit or chain[start] not in blocks:
            return start
        return bisect_left(chain, True, start, limit, key=lambda name: name not in blocks)

    def match(
        self, chain: Sequence[BlockHash], *, limit: int, start: int = 0
    ) -> list[KVCacheBlock]:
        """See `PrefixCache`."""
        blocks = self._blocks
        if start >= limit or chain[start] not in blocks:
            return []
        end = self.match_length(chain, limit=limit, start=start)
        return [blocks[name] for name in chain[start:end]]

    def insert(
        self, chain: Sequence[BlockHash], blocks: Sequence[KVCacheBlock], *, start: int
    ) -> None:
        """See `PrefixCache`."""
        cached = self._blocks
        for name, block in zip(chain[start : start + len(blocks)], blocks, strict=True):
            block.block_hash = name
            cached[name] = block
        self.version += 1

    def remove(self, blocks: Sequence[KVCacheBlock]) -> list[BlockHash]:
        """See `PrefixCache`; that no child is left is the caller's promise."""
        cached, names = self._blocks, []
        for block in blocks:
            name = block.block_hash
            assert name is not None, f"{block} is not cached"
            del cached[name]
            block.block_hash = None
            names.append(name)
        self.version += 1
        return names

    def clear(self) -> None:
        """See `PrefixCache`."""
        self._blocks.clear()
        self.version += 1
