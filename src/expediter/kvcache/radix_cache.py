"""The prefix cache as a radix tree.

Each node is a run of blocks that so far belong together; where two prompts part, a node is
split. The idea is SGLang's RadixAttention (sglang/srt/mem_cache/radix_cache.py), at the
granularity of blocks and with names for keys. Names cover their parents, so comparing the
last name of a node compares the whole node.

Only the last block of a leaf can be removed. The pool's order of eviction never asks for any
other, so leaves shrink from their ends, least recently used first, and no heap is needed.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from expediter.kvcache.block import KVCacheBlock
from expediter.kvcache.hashing import BlockHash


class _Node:
    """A run of blocks, each the only child of the one before; only the root is empty."""

    __slots__ = ("blocks", "children", "names", "parent")

    def __init__(
        self, names: list[BlockHash], blocks: list[KVCacheBlock], *, parent: "_Node | None"
    ) -> None:
        self.names = names
        self.blocks = blocks
        self.parent = parent
        self.children: dict[BlockHash, _Node] = {}  # by first name


class RadixPrefixCache:
    """See `PrefixCache`. Matching costs a comparison a node, not a look-up a block."""

    def __init__(self) -> None:
        self.version = 0
        self._num_blocks = 0
        self._root = _Node([], [], parent=None)
        self._ending: dict[BlockHash, _Node] = {}  # nodes by last name

    def __len__(self) -> int:
        return self._num_blocks

    def match_length(self, chain: Sequence[BlockHash], *, limit: int, start: int = 0) -> int:
        """See `PrefixCache`."""
        end = start
        for _, position, num_matched in self._path(chain, limit=limit):
            end = position + num_matched
        return end

    def match(
        self, chain: Sequence[BlockHash], *, limit: int, start: int = 0
    ) -> list[KVCacheBlock]:
        """See `PrefixCache`."""
        blocks: list[KVCacheBlock] = []
        for node, position, num_matched in self._path(chain, limit=limit):
            blocks += node.blocks[max(0, start - position) : num_matched]
        return blocks

    def insert(
        self, chain: Sequence[BlockHash], blocks: Sequence[KVCacheBlock], *, start: int
    ) -> None:
        """See `PrefixCache`; extends the leaf that ends at `start`, or begins a new one."""
        names = list(chain[start : start + len(blocks)])
        for name, block in zip(names, blocks, strict=True):
            block.block_hash = name
        node = self._node_ending_at(chain, start)
        if node is self._root or node.children:
            child = _Node(names, list(blocks), parent=node)
            node.children[names[0]] = child
            node = child
        else:
            del self._ending[node.names[-1]]
            node.names += names
            node.blocks += blocks
        self._ending[names[-1]] = node
        self._num_blocks += len(blocks)
        self.version += 1

    def remove(self, blocks: Sequence[KVCacheBlock]) -> list[BlockHash]:
        """See `PrefixCache`."""
        self.version += 1
        return [self._remove(block) for block in blocks]

    def _remove(self, block: KVCacheBlock) -> BlockHash:
        assert block.block_hash is not None
        node = self._ending.pop(block.block_hash)
        assert not node.children, f"{block} has cached children"
        name = node.names.pop()
        node.blocks.pop()
        if node.names:
            self._ending[node.names[-1]] = node
        else:
            assert node.parent is not None
            del node.parent.children[name]
        block.block_hash = None
        self._num_blocks -= 1
        return name

    def clear(self) -> None:
        """See `PrefixCache`."""
        self._root = _Node([], [], parent=None)
        self._ending.clear()
        self._num_blocks = 0
        self.version += 1

    def _path(self, chain: Sequence[BlockHash], *, limit: int) -> Iterator[tuple[_Node, int, int]]:
        """The matched nodes: each, its place in the chain, and how many of its names match."""
        node, position = self._root, 0
        while position < limit:
            child = node.children.get(chain[position])
            if child is None:
                return
            num_matched = _num_common(child.names, chain, position=position, limit=limit)
            yield child, position, num_matched
            if num_matched < len(child.names):
                return
            node, position = child, position + num_matched

    def _node_ending_at(self, chain: Sequence[BlockHash], end: int) -> _Node:
        """The node that ends with the chain's first `end` names, split off if need be."""
        if end == 0:
            return self._root
        if node := self._ending.get(chain[end - 1]):
            return node
        *_, (node, _, num_matched) = self._path(chain, limit=end)
        return self._split(node, num_matched)

    def _split(self, node: _Node, num_names: int) -> _Node:
        """Put a node's first `num_names` blocks into a node of their own above it; that node."""
        assert node.parent is not None
        upper = _Node(node.names[:num_names], node.blocks[:num_names], parent=node.parent)
        node.parent.children[node.names[0]] = upper
        del node.names[:num_names]
        del node.blocks[:num_names]
        upper.children[node.names[0]] = node
        node.parent = upper
        self._ending[upper.names[-1]] = upper
        return upper


def _num_common(
    names: Sequence[BlockHash], chain: Sequence[BlockHash], *, position: int, limit: int
) -> int:
    """How many names equal the chain's from `position`; equal names have equal parents."""
    longest = min(len(names), limit - position)
    if names[longest - 1] == chain[position + longest - 1]:
        return longest
    return bisect_left(
        range(longest), True, key=lambda index: names[index] != chain[position + index]
    )
