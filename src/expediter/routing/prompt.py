"""Names for the blocks of a prompt, as the router sees them.

An engine names blocks with hashes and seeds of its own, so the router never compares those:
it hashes the tokens themselves, and each key covers its parent's. One key therefore names a
whole prefix, and the same prefix has the same key whichever engine told of it.

Keys are xxh3-128: fast, and a collision costs one badly placed request, never a leak.
"""

from array import array
from collections.abc import Container, Sequence
from typing import NewType, Protocol, cast

import msgspec
import xxhash

BlockKey = NewType("BlockKey", bytes)
"""16 bytes that name a block and, through its parents, everything before it."""

_TEXT_SEED = BlockKey(xxhash.xxh3_128_digest(b"text"))
MIN_TEXT_TOKENS = 64
"""Text is compared in longer blocks than tokens: its matches are estimates anyway, and naming
and remembering blocks is most of what a new text costs."""

BYTES_PER_TOKEN = 4  # a token id is a 32-bit integer; text counts four UTF-8 bytes as a token


class Chain(Protocol):
    """Computes the keys of the full blocks in `data`, as `chain_keys` does."""

    def __call__(
        self, data: bytes, *, block_size: int, parent: BlockKey, extras: Sequence[bytes] = ()
    ) -> list[BlockKey]:
        """The keys after `parent`; `extras` belong to the first blocks."""
        ...


class Prompt(msgspec.Struct, eq=False, kw_only=True):
    """What routing compares: a row of tokens, or text where no tokenizer is known.

    `seed` keeps apart what no token shows: tokens from text, one adapter from another.
    `first_extra` is what else names the first block (a cache salt), packed by `pack_extra`.
    `length` is set where there are no tokens, only keys (`named_prompt`).
    """

    data: bytes
    seed: BlockKey
    is_text: bool
    first_extra: bytes = b""
    length: int | None = None
    _keys: dict[int, list[BlockKey]] = msgspec.field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """The prompt's length; an estimate for text."""
        if self.length is not None:
            return self.length
        return -(-len(self.data) // BYTES_PER_TOKEN)

    def unit(self, block_size: int) -> int:
        """The tokens in a block, where workers' blocks have `block_size`."""
        return text_unit(block_size) if self.is_text else block_size

    def keys(self, block_size: int, *, chain: Chain | None = None) -> list[BlockKey]:
        """The keys of every full block, computed once for each block size."""
        keys = self._keys.get(block_size)
        if keys is None:
            keys = (chain or chain_keys)(
                self.data,
                block_size=block_size,
                parent=self.seed,
                extras=(self.first_extra,) if self.first_extra else (),
            )
            self._keys[block_size] = keys
        return keys

    def named_every(self, num_tokens: int) -> list[BlockKey]:
        """Of the keys computed so far those that name so many tokens, twice as many, and so on.

        None if there are none, or if blocks do not end there. Those of the largest blocks, so that
        prompts of one fleet are named alike, in whichever order their keys were computed.
        """
        for block_size, keys in sorted(self._keys.items(), reverse=True):
            if num_tokens % block_size == 0:
                step = num_tokens // block_size
                return keys[step - 1 :: step]
        return []


def text_unit(block_size: int) -> int:
    """The tokens in a block of text: some of the workers' blocks, `MIN_TEXT_TOKENS` or more."""
    return -(-MIN_TEXT_TOKENS // block_size) * block_size


def token_prompt(
    token_ids: Sequence[int], *, lora_name: str | None = None, cache_salt: str | None = None
) -> Prompt:
    """A prompt of token ids; adapter and salt make it a different one. May raise OverflowError."""
    return packed_prompt(pack_tokens(token_ids), lora_name=lora_name, cache_salt=cache_salt)


def packed_prompt(
    data: bytes, *, lora_name: str | None = None, cache_salt: str | None = None
) -> Prompt:
    """A prompt of token ids that `pack_tokens` has packed."""
    return Prompt(
        data=data,
        seed=token_seed(lora_name),
        is_text=False,
        first_extra=pack_extra((cache_salt,)) if cache_salt else b"",
    )


def text_prompt(text: str | bytes, *, cache_salt: str | None = None) -> Prompt:
    """A prompt of which only the text is known, maybe as UTF-8; it matches text prompts only."""
    return Prompt(
        data=text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"),
        seed=_TEXT_SEED,
        is_text=True,
        first_extra=pack_extra((cache_salt,)) if cache_salt else b"",
    )


def named_prompt(names: Sequence[bytes], *, num_tokens: int, block_size: int) -> Prompt:
    """A simulated prompt: it has no tokens, and its full blocks' names are their keys.

    Names after those are left out.
    """
    keys = cast("list[BlockKey]", list(names[: num_tokens // block_size]))
    return Prompt(
        data=b"", seed=BlockKey(b""), is_text=False, length=num_tokens, _keys={block_size: keys}
    )


def token_seed(lora_name: str | None) -> BlockKey:
    """The parent of a first block, which says whose adapter computed the KV."""
    return BlockKey(xxhash.xxh3_128_digest(b"tokens\0" + (lora_name or "").encode()))


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Four bytes a token; ids outside 32 bits raise OverflowError."""
    return array("I", token_ids).tobytes()


def pack_extra(extra: Sequence[object]) -> bytes:
    """What besides tokens names a block, as bytes; nothing packs to nothing."""
    return msgspec.msgpack.encode(list(extra)) if extra else b""


def chain_keys(
    data: bytes, *, block_size: int, parent: BlockKey, extras: Sequence[bytes] = ()
) -> list[BlockKey]:
    """The keys of the full blocks in `data` after `parent`; `extras` belong to the first ones."""
    digest = xxhash.xxh3_128_digest
    num_bytes = block_size * BYTES_PER_TOKEN
    keys: list[BlockKey] = []
    # Blocks have one length, so what follows a block's tokens cannot be taken for tokens.
    for index, extra in enumerate(extras[: len(data) // num_bytes]):
        start = index * num_bytes
        parent = BlockKey(digest(parent + data[start : start + num_bytes] + extra))
        keys.append(parent)
    for start in range(len(keys) * num_bytes, len(data) - num_bytes + 1, num_bytes):
        parent = cast("BlockKey", digest(parent + data[start : start + num_bytes]))
        keys.append(parent)
    return keys


def num_held(keys: Sequence[BlockKey], held: Container[BlockKey]) -> int:
    """How many of the first keys are in `held`, which has the ancestors of all it has."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low
