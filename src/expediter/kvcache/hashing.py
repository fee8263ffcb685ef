"""Names for KV blocks.

A block's KV depends on every token before it, so its name must too. Each hash covers the
block's own tokens and its parent's hash; one hash therefore names a whole prefix, and two
prompts share exactly the prefix up to their last common name. The first block's parent is
the hash of everything else that changes KV: the model as it is loaded, the adapter, the
tenant's salt. SHA-256, because a collision would show one tenant another's text.

The bytes that are hashed can be read back in one way only. A root is 32 zero bytes, which no
parent can be, then fields with their lengths. A block is 32 bytes of parent, four bytes a
token, and for each image or clip that reaches into the block its place and its content's
hash with its length.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import iter_unpack
from typing import NewType, cast

from expediter.request import MultiModalItem

BlockHash = NewType("BlockHash", bytes)
"""32 bytes that name a full block and, through its parents, the whole prefix before it."""

TOKEN_BYTES = 4
_ROOT_MARK = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNamespace:
    """What is the same for all of a worker's KV; caches of different namespaces share nothing."""

    model: str
    revision: str = ""
    tokenizer: str = ""
    dtype: str = ""
    layout: str = ""

    @property
    def seed(self) -> bytes:
        """32 bytes that stand for all the fields."""
        fields = (self.model, self.revision, self.tokenizer, self.dtype, self.layout)
        return sha256(_ROOT_MARK + b"".join(map(_field, fields))).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KVContext:
    """What besides its tokens changes one prompt's KV; item offsets count from the first token."""

    lora_name: str | None = None
    cache_salt: str | None = None
    multimodal: tuple[MultiModalItem, ...] = ()


TEXT_ONLY = KVContext()


class BlockHasher:
    """Names the blocks of one growing sequence."""

    def __init__(
        self,
        *,
        block_size: int,
        seed: bytes,
        context: KVContext = TEXT_ONLY,
        parent: BlockHash | None = None,
    ) -> None:
        """`parent`, when the sequence continues another, already stands for adapter and salt."""
        self._block_size = block_size
        self._items = context.multimodal
        self._first_parent = parent or _root(seed, block_size=block_size, context=context)

    def extend(self, hashes: list[BlockHash], token_ids: Sequence[int]) -> None:
        """Append to `hashes`, which name the first full blocks, the names of the others."""
        start = len(hashes) * self._block_size
        if len(token_ids) - start < self._block_size:
            return
        blocks = self._block_bytes(token_ids[start:] if start else token_ids)
        parent: bytes = hashes[-1] if hashes else self._first_parent
        names = cast("list[bytes]", hashes)  # calling `BlockHash` would cost a fifth more
        if self._items:
            for (own,) in blocks:
                items = self._item_bytes(len(names) * self._block_size)
                names.append(parent := sha256(parent + own + items).digest())
        else:
            names += [parent := sha256(parent + own).digest() for (own,) in blocks]

    def _block_bytes(self, token_ids: Sequence[int]) -> Iterator[tuple[bytes]]:
        """Each full block's tokens: four little-endian bytes a token, in a tuple."""
        size = self._block_size * TOKEN_BYTES
        payload = _token_bytes(token_ids)
        return iter_unpack(f"{size}s", payload[: len(payload) // size * size])

    def _item_bytes(self, start: int) -> bytes:
        """The items that reach into the block that begins at token `start`."""
        return b"".join(
            _integer(item.offset - start) + _integer(item.num_tokens) + _field(item.content_hash)
            for item in items_in_block(self._items, start=start, block_size=self._block_size)
        )


def hash_blocks(
    token_ids: Sequence[int],
    *,
    block_size: int,
    namespace: CacheNamespace,
    parent: BlockHash | None = None,
    context: KVContext = TEXT_ONLY,
) -> list[BlockHash]:
    """Name every full block of `token_ids`, which begin the prompt or follow block `parent`."""
    hasher = BlockHasher(block_size=block_size, seed=namespace.seed, context=context, parent=parent)
    hashes: list[BlockHash] = []
    hasher.extend(hashes, token_ids)
    return hashes


def items_in_block(
    items: Sequence[MultiModalItem], *, start: int, block_size: int
) -> list[MultiModalItem]:
    """The items with a token in [start, start + block_size)."""
    end = start + block_size
    return [i for i in items if i.offset < end and start < i.offset + i.num_tokens]


def _root(seed: bytes, *, block_size: int, context: KVContext) -> bytes:
    own = _field(context.lora_name) + _field(context.cache_salt) + _integer(block_size)
    return sha256(_ROOT_MARK + seed + own).digest()


def _field(text: str | None) -> bytes:
    """A string with its length before it; None is not the empty string."""
    if text is None:
        return _integer(-1)
    data = text.encode("utf-8", "surrogatepass")
    return _integer(len(data)) + data


def _integer(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _token_bytes(token_ids: Sequence[int]) -> bytes:
    """Four little-endian bytes a token; `OverflowError` for what is no unsigned 32-bit id."""
    words = array("I", token_ids)
    assert words.itemsize == TOKEN_BYTES
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()
