"""Which run of blocks holds which prefix.

A cache maps names to blocks, one block a name. Because a name covers its parent's, a chain of
names is a path from the root, and the cache keeps that shape: whenever a name is in it, so
are all names before it on its path. Two facts follow. Of any chain it holds exactly a first
part, so the end of a match can be found by bisection; and a block may only leave when no
child of it is left.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from expediter.kvcache.hashing import BlockHash
from expediter.kvcache.run import Run, root


class Match(NamedTuple):
    """The first `num_blocks` of a chain are cached: the path to `run` without its last
    `num_beyond` blocks."""

    run: Run
    num_blocks: int
    num_beyond: int


class PrefixCache(Protocol):
    """Names to runs. A chain is a prompt's block hashes, in order from its first block.

    Nothing here knows about recency; `BlockPool` does, and so decides what leaves and when.
    `version` changes with every change of what is cached.
    """

    version: int
    root: Run

    def __len__(self) -> int:
        """How many blocks are cached."""
        ...

    def match(
        self, chain: Sequence[BlockHash], *, limit: int, after: Run | None = None, start: int = 0
    ) -> Match:
        """How many of the first `limit` names are cached, given that `start` end with `after`.

        Changes nothing. The answer holds while `version` does, or the path is held.
        """
        ...

    def cut(self, run: Run, num_beyond: int) -> Run:
        """The run that ends so many blocks before this one, split off if need be.

        One that was split off is to be held at once.
        """
        ...

    def insert(self, after: Run, names: Sequence[BlockHash], block_ids: Sequence[int]) -> Run:
        """Name blocks, which continue `after`; the run that the path now ends with.

        None of the names may be cached. A holder of `after` becomes one of the run returned.
        """
        ...

    def remove(self, run: Run, num_blocks: int) -> list[BlockHash]:
        """Forget the last blocks of a run without children; the names they had, last first."""
        ...

    def clear(self) -> None:
        """Forget all names, which nobody holds."""
        ...


class HashPrefixCache:
    """The cache as a hash table from name to block, as in vLLM: every run is one block."""

    def __init__(self) -> None:
        self.version = 0
        self.root = root()
        self._runs: dict[BlockHash, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def match(
        self, chain: Sequence[BlockHash], *, limit: int, after: Run | None = None, start: int = 0
    ) -> Match:
        """See `PrefixCache`; a logarithmic number of look-ups, one where nothing matches."""
        runs = self._runs
        if start >= limit or chain[start] not in runs:
            return Match(after or self.root, start, 0)
        end = bisect_left(chain, True, start, limit, key=lambda name: name not in runs)
        return Match(runs[chain[end - 1]], end, 0)

    def cut(self, run: Run, num_beyond: int) -> Run:
        """See `PrefixCache`."""
        for _ in range(num_beyond):
            assert run.parent is not None
            run = run.parent
        return run

    def insert(self, after: Run, names: Sequence[BlockHash], block_ids: Sequence[int]) -> Run:
        """See `PrefixCache`."""
        run = after
        for name, block_id in zip(names, block_ids, strict=True):
            self._runs[name] = run = Run([name], [block_id], parent=run)
        self.version += 1
        return run

    def remove(self, run: Run, num_blocks: int) -> list[BlockHash]:
        """See `PrefixCache`; that no child is left is the caller's promise."""
        assert num_blocks == 1, "every run is one block"
        del self._runs[run.names[0]]
        self.version += 1
        return run.names

    def clear(self) -> None:
        """See `PrefixCache`."""
        self._runs.clear()
        self.version += 1
