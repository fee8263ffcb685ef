"""The prefix cache as a radix tree.

Each run is as long as its blocks so far belong together; where two prompts part, it is split.
The idea is SGLang's RadixAttention (sglang/srt/mem_cache/radix_cache.py), at the granularity of
blocks and with names for keys. Names cover their parents, so comparing the last name of a run
compares the whole run.

Only the last blocks of a leaf can be removed. The pool's order of eviction never asks for any
other, so leaves shrink from their ends, least recently used first, and no heap is needed.
"""

from bisect import bisect_left
from collections.abc import Sequence

from expediter.kvcache.hashing import BlockHash
from expediter.kvcache.prefix_cache import Match
from expediter.kvcache.run import Run, root


class RadixPrefixCache:
    """See `PrefixCache`. Matching costs a comparison a run, not a look-up a block."""

    def __init__(self) -> None:
        self.version = 0
        self.root = root()
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def match(
        self, chain: Sequence[BlockHash], *, limit: int, after: Run | None = None, start: int = 0
    ) -> Match:
        """See `PrefixCache`."""
        run = after or self.root
        while start < limit:
            child = run.children.get(chain[start])
            if child is None:
                break
            num_matched = _num_common(child.names, chain, start=start, limit=limit)
            start += num_matched
            run = child
            if num_matched < len(child.names):
                return Match(run, start, len(child.names) - num_matched)
        return Match(run, start, 0)

    def cut(self, run: Run, num_beyond: int) -> Run:
        """See `PrefixCache`."""
        while num_beyond >= len(run.names) > 0:
            assert run.parent is not None
            num_beyond -= len(run.names)
            run = run.parent
        return self._split(run, len(run.names) - num_beyond) if num_beyond else run

    def insert(self, after: Run, names: Sequence[BlockHash], block_ids: Sequence[int]) -> Run:
        """See `PrefixCache`; extends a leaf that nobody else holds, or begins a new one."""
        self._num_blocks += len(names)
        self.version += 1
        if after.num_holders == 1 and not after.children and after.parent is not None:
            after.names += names
            after.block_ids += block_ids
            return after
        child = Run(list(names), list(block_ids), parent=after)
        after.children[names[0]] = child
        return child

    def remove(self, run: Run, num_blocks: int) -> list[BlockHash]:
        """See `PrefixCache`."""
        assert not run.children, f"{run} has cached children"
        names = run.names[-num_blocks:]
        names.reverse()
        del run.names[-num_blocks:]
        if not run.names:
            assert run.parent is not None
            del run.parent.children[names[-1]]
        self._num_blocks -= num_blocks
        self.version += 1
        return names

    def clear(self) -> None:
        """See `PrefixCache`."""
        self.root.children.clear()
        self._num_blocks = 0
        self.version += 1

    def _split(self, run: Run, num_blocks: int) -> Run:
        """Put a run's first blocks into a run of their own above it; that run.

        Who held both holds the lower one as before, and through it the upper one.
        """
        assert run.parent is not None
        upper = Run(
            run.names[:num_blocks],
            run.block_ids[:num_blocks],
            parent=run.parent,
            num_holders=1 if run.num_holders else 0,
        )
        run.parent.children[run.names[0]] = upper
        del run.names[:num_blocks]
        del run.block_ids[:num_blocks]
        upper.children[run.names[0]] = run
        run.parent = upper
        return upper


def _num_common(
    names: Sequence[BlockHash], chain: Sequence[BlockHash], *, start: int, limit: int
) -> int:
    """How many names equal the chain's from `start`; equal names have equal parents."""
    longest = min(len(names), limit - start)
    if names[longest - 1] == chain[start + longest - 1]:
        return longest
    return bisect_left(range(longest), True, key=lambda index: names[index] != chain[start + index])
