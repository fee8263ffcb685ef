"""Blocks held beyond the request that filled them: for a peer that is still to read them.

Like a sequence, a pin holds a prefix from the root and lets go of children first, so it keeps the
pool's promise that no cached block is evicted before its cached children. That is why a pin
follows its sequence when that adopts another's cached block in place of its own: else it would
hold later blocks of the path without the one in between. The block given up stays held as well,
for whoever was told to read it there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expediter.kvcache.block import KVCacheBlock


class Pin:
    """The first blocks of a sequence, one reference to each; `KVCacheManager` makes and ends it.

    `block_ids` are where the sequence's KV is while the pin lasts, whatever it adopts.
    """

    __slots__ = ("block_ids", "blocks", "displaced")

    def __init__(self, blocks: Sequence["KVCacheBlock"]) -> None:
        self.blocks = list(blocks)
        self.displaced: list[KVCacheBlock] = []
        self.block_ids = [block.block_id for block in blocks]

    @property
    def is_held(self) -> bool:
        """Whether it has not ended."""
        return bool(self.blocks)

    def replace(self, blocks: Sequence["KVCacheBlock"], *, start: int) -> list["KVCacheBlock"]:
        """Hold `blocks` from `start` on too; those of them it now needs a reference to."""
        adopted = list(blocks[: max(0, len(self.blocks) - start)])
        self.displaced += self.blocks[start : start + len(adopted)]
        self.blocks[start : start + len(adopted)] = adopted
        return adopted
