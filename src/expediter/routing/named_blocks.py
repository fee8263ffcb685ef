"""Blocks of one worker whose hashes are their keys, because they were made up for a simulation.

Nothing has to be translated, so the table of holders says by itself what the worker holds. All
that is kept besides are the lists of names that its events came with, for when it loses
everything at once.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

from expediter.kvcache.events import BlockStored
from expediter.routing.chains import BlockKey
from expediter.routing.holders import Holders, unset_all

_MIN_LISTED = 4096  # names, before it is looked which of them are still held


class NamedBlocks:
    """Its length is how many blocks `bit` holds; all of `holders` is one and the same table."""

    def __init__(self, bit: int) -> None:
        self._bit = bit
        self._num_held = 0
        self._listed: list[Sequence[BlockKey]] = []
        self._num_listed = 0  # also of those that were removed

    def __len__(self) -> int:
        return self._num_held

    def store(self, holders: Holders, event: BlockStored) -> bool:
        """Take in an event without tokens; False, and nothing changes, if its parent is unknown."""
        bit = self._bit
        parent = cast("BlockKey | None", event.parent_block_hash)
        if parent is not None and not holders.get(parent, 0) & bit:
            return False
        keys = cast("Sequence[BlockKey]", event.block_hashes)
        num_held = self._num_held - len(holders)
        for key in keys:
            mask = holders.setdefault(key, bit)
            if not mask & bit:
                holders[key] = mask | bit
                num_held += 1
        self._num_held = num_held + len(holders)
        self._listed.append(keys)
        self._num_listed += len(keys)
        if self._num_listed > 2 * self._num_held + _MIN_LISTED:
            self._tidy(holders)
        return True

    def remove(self, holders: Holders, names: Iterable[bytes]) -> list[BlockKey]:
        """The blocks of these names are gone; those that were here."""
        bit, gone = self._bit, []
        for key in cast("Iterable[BlockKey]", names):
            mask = holders.pop(key, 0)
            if mask & bit:
                gone.append(key)
                mask ^= bit
            if mask:
                holders[key] = mask
        self._num_held -= len(gone)
        return gone

    def clear(self, holders: Holders) -> None:
        """All are gone."""
        unset_all(holders, chain.from_iterable(self._listed), self._bit)
        self._listed.clear()
        self._num_held = self._num_listed = 0

    def _tidy(self, holders: Holders) -> None:
        """List what is held, once."""
        listed = dict.fromkeys(chain.from_iterable(self._listed))
        self._listed = [[key for key in listed if holders.get(key, 0) & self._bit]]
        self._num_listed = self._num_held
