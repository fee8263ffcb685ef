"""Consecutive cached blocks with the same holders.

A prompt's blocks are found, held, released and evicted together, and most are nobody else's. So
what is counted and queued is not a block but a run of them: all that happens to a prompt costs a
few steps for each run and, for each block, a place in a list.

Runs form a tree: a child continues its parent, and the path from the root to a run's end is one
prefix. Whoever holds a prefix holds the run that it ends with, and a run that is held holds its
parent. So `num_holders` counts who ends here and which children are held, and nothing but a run
without holders is free.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expediter.kvcache.hashing import BlockHash


class Run:
    """`names[i]` is the prefix that ends with block `block_ids[i]`; only the root is empty."""

    __slots__ = ("block_ids", "children", "names", "num_holders", "parent")

    def __init__(
        self,
        names: "list[BlockHash]",
        block_ids: list[int],
        *,
        parent: "Run | None",
        num_holders: int = 1,
    ) -> None:
        self.names = names
        self.block_ids = block_ids
        self.parent = parent
        self.num_holders = num_holders  # the root has one more, so it is never free
        self.children: dict[BlockHash, Run] = {}  # by first name, where a cache looks there

    def path_ids(self) -> list[int]:
        """All blocks of the prefix that ends with this run."""
        if self.parent is None or self.parent.parent is None:
            return self.block_ids[:]
        parts = []
        run = self
        while run.parent is not None:
            parts.append(run.block_ids)
            run = run.parent
        return [block_id for part in reversed(parts) for block_id in part]

    def __repr__(self) -> str:
        return f"Run({self.block_ids}, num_holders={self.num_holders})"


def root() -> Run:
    """Where every prefix begins."""
    return Run([], [], parent=None)
