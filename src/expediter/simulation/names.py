"""Short names for the blocks of transcripts, for one run of one simulation.

Tables of blocks are most of what a simulated request costs, and most of that is waiting for
memory. So blocks are named by whole numbers here, neighbours by neighbours: they hash to
themselves, and the tables are walked in order. Two blocks have a name in common exactly where
their names in `workload/transcript.py` are equal; nobody but the run can tell what they mean.
"""

from collections.abc import Sequence
from itertools import chain
from typing import cast

from expediter.kvcache.hashing import BlockHash
from expediter.workload.transcript import Transcript


class BlockNames:
    """Gives names; the same object must name all transcripts that are to be compared."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        # Of the blocks that end in a text, by its path:
        self._names: dict[bytes, list[int] | range] = {}
        self._num_named = 1  # no name is false

    def of(self, transcript: Transcript) -> list[BlockHash]:
        """The names of all full blocks, in a list of the caller's own.

        They are whole numbers, typed as the hashes that they stand for: names are only compared.
        """
        own = []
        node, end = transcript, transcript.num_tokens // self._block_size
        while node.before is not None:
            start = node.before.num_tokens // self._block_size
            own.append(self._own(node, end - start))
            node, end = node.before, start
        own.reverse()
        return cast("list[BlockHash]", list(chain.from_iterable(own)))

    def _own(self, node: Transcript, num_blocks: int) -> Sequence[int]:
        """Of a segment: as many of its text's as end in it.

        Most texts come once, and are a range until they come again.
        """
        known = self._names.get(node.text_name)
        if known is None:
            known = self._names[node.text_name] = self._new(num_blocks)
            return known
        if isinstance(known, range):
            known = self._names[node.text_name] = list(known)
        if len(known) < num_blocks:
            known.extend(self._new(num_blocks - len(known)))
        return known if len(known) == num_blocks else known[:num_blocks]

    def _new(self, num_blocks: int) -> range:
        start = self._num_named
        self._num_named += num_blocks
        return range(start, start + num_blocks)
