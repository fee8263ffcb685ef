"""Blocks held beyond the request that filled them: for a peer that is still to read them.

Like a sequence, a pin holds a prefix from the root, so it keeps the pool's promise that no cached
block is evicted before its cached children. That is why a pin follows its sequence when that
adopts another's cached block in place of its own: else it would hold later blocks of the path
without the one in between. The block given up stays held as well, for whoever was told to read
it there.
"""

from collections.abc import Sequence

from expediter.kvcache.run import Run


class Pin:
    """The first blocks of a sequence, held once more; `KVCacheManager` makes, moves and ends it.

    `block_ids` are where the sequence's KV is while the pin lasts, whatever it adopts. It holds
    the cached path to `run`, then the `nameless` blocks after that, and what was `displaced`.
    """

    __slots__ = ("block_ids", "displaced", "nameless", "run")

    def __init__(self, run: Run, *, block_ids: Sequence[int], num_cached_blocks: int) -> None:
        self.run: Run | None = run
        self.block_ids = list(block_ids)
        self.nameless = self.block_ids[num_cached_blocks:]
        self.displaced: list[int] = []

    @property
    def is_held(self) -> bool:
        """Whether it has not ended."""
        return self.run is not None

    def take_nameless(self, num_blocks: int) -> list[int]:
        """The first nameless blocks, up to so many, which are held in another way from now on."""
        taken = self.nameless[:num_blocks]
        del self.nameless[:num_blocks]
        return taken
