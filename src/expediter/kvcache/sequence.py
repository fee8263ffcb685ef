"""A request as the cache sees it: its tokens, the names of its blocks, the blocks it holds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from expediter.kvcache.hashing import BlockHash, BlockHasher, KVContext
from expediter.request import SampledToken

if TYPE_CHECKING:
    from expediter.kvcache.pin import Pin
    from expediter.kvcache.run import Run


class KVSequence:
    """Grows by a token at a time; only `KVCacheManager` changes which blocks it holds.

    The first `num_cached_blocks` of its `block_ids` are the cached blocks of their names, the
    path to `run`; later ones are this sequence's alone. `token_ids` is empty for a simulated
    request, whose names are all known from the start.
    """

    __slots__ = (
        "_hasher",
        "_names",
        "block_hashes",
        "block_ids",
        "context",
        "matched_blocks",
        "matched_version",
        "num_cached_blocks",
        "num_tokens",
        "pins",
        "run",
        "token_ids",
    )

    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        num_tokens: int,
        context: KVContext,
        hasher: BlockHasher | None,
        block_hashes: Sequence[BlockHash] = (),
    ) -> None:
        self.token_ids = list(token_ids)
        self.num_tokens = num_tokens
        self.context = context
        self._hasher = hasher
        self._names: list[BlockHash] = []
        self.block_hashes = self._names if hasher else block_hashes
        self.block_ids: list[int] = []
        self.run: Run | None = None  # while it holds any blocks
        self.num_cached_blocks = 0
        self.pins: tuple[Pin, ...] = ()  # what holds its blocks besides it
        self.matched_blocks = 0  # of the longest match, as of the cache's `matched_version`
        self.matched_version = -1
        self.name_blocks()

    def append(self, tokens: Sequence[SampledToken]) -> None:
        """Add tokens at the end; a simulated sequence only counts them."""
        self.num_tokens += len(tokens)
        if self.token_ids:
            self.token_ids += [token.token_id for token in tokens]

    def name_blocks(self) -> None:
        """Name the full blocks that have no name yet."""
        if self._hasher is not None:
            self._hasher.extend(self._names, self.token_ids)
