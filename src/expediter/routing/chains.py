"""Chains of keys: each names its block and, through its parent's key, all that comes before."""

from collections.abc import Sequence
from typing import NewType, Protocol

import xxhash

BlockKey = NewType("BlockKey", bytes)
"""16 bytes that name a block and, through its parents, everything before it."""

BYTES_PER_TOKEN = 4  # a token id is a 32-bit integer; text counts four UTF-8 bytes as a token


class Chain(Protocol):
    """Computes the keys of the blocks in `data`, as `chain_ends` does."""

    def __call__(
        self,
        data: bytes,
        *,
        ends: Sequence[int],
        parent: BlockKey,
        extras: Sequence[bytes] = (),
    ) -> list[BlockKey]:
        """The keys after `parent` of the blocks that end at these bytes."""
        ...


def chain_ends(
    data: bytes, *, ends: Sequence[int], parent: BlockKey, extras: Sequence[bytes] = ()
) -> list[BlockKey]:
    """The keys after `parent` of the blocks that end at these bytes; `extras` are the first ones'.

    What is compared must have blocks of the same lengths, so that what follows a block's tokens
    cannot be taken for tokens.
    """
    digest = xxhash.xxh3_128_digest
    keys: list[BlockKey] = []
    start = 0
    for end, extra in zip(ends, extras, strict=False):
        parent = BlockKey(digest(parent + data[start:end] + extra))
        keys.append(parent)
        start = end
    append = keys.append
    for end in ends[len(keys) :] if keys else ends:
        parent = digest(parent + data[start:end])  # type: ignore[assignment]
        append(parent)
        start = end
    return keys


def chain_keys(
    data: bytes, *, block_size: int, parent: BlockKey, extras: Sequence[bytes] = ()
) -> list[BlockKey]:
    """The same for blocks of so many tokens, the full ones in `data`."""
    num_bytes = block_size * BYTES_PER_TOKEN
    ends = range(num_bytes, len(data) + 1, num_bytes)
    return chain_ends(data, ends=ends, parent=parent, extras=extras)
