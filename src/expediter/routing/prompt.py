"""Names for the blocks of a prompt, as the router sees them.

An engine names blocks with hashes and seeds of its own, so the router never compares those:
it hashes the tokens themselves, and each key covers its parent's. One key therefore names a
whole prefix, and the same prefix has the same key whichever engine told of it.

Keys are xxh3-128: fast, and a collision costs one badly placed request, never a leak.
"""

from array import array
from collections.abc import Callable, Container, Sequence
from typing import cast

import msgspec
import xxhash

from expediter.routing.chains import BYTES_PER_TOKEN as BYTES_PER_TOKEN
from expediter.routing.chains import BlockKey as BlockKey
from expediter.routing.chains import Chain, chain_ends
from expediter.routing.marks import TEXT_MARKS, Marks, marks_of
from expediter.routing.stem import Stem

_TEXT_SEED = BlockKey(xxhash.xxh3_128_digest(b"text"))


class Prompt(msgspec.Struct, eq=False, kw_only=True):
    """What routing compares: a row of tokens, or text where no tokenizer is known.

    `data` is what follows `stem`, or all of it. After it come the tokens that `more` encodes,
    `num_more` by estimate, if nobody was ever sent them; that is put off until somebody asks for
    all. `seed` keeps apart what no token shows: tokens from text, one adapter from another.
    `first_extra` is what else names the first block (a cache salt), packed by `pack_extra`.
    `length` is set where there are no tokens, only keys (`named_prompt`).
    """

    data: bytes
    seed: BlockKey
    is_text: bool
    stem: Stem | None = None
    first_extra: bytes = b""
    more: Callable[[], bytes] | None = None
    num_more: int = 0
    length: int | None = None
    _keys: dict[int, list[BlockKey]] = msgspec.field(default_factory=dict)
    _marks: dict[int, list[BlockKey]] = msgspec.field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """The prompt's length; an estimate for text."""
        if self.length is not None:
            return self.length
        num_bytes = len(self.data) + (self.stem.num_bytes if self.stem is not None else 0)
        return -(-num_bytes // BYTES_PER_TOKEN) + self.num_more

    @property
    def whole(self) -> bytes:
        """All tokens, four bytes each, or all of the text."""
        self._complete()
        return self.data if self.stem is None else self.stem.whole + self.data

    def keys(self, block_size: int, *, chain: Chain = chain_ends) -> list[BlockKey]:
        """The keys of every full block, computed once for each block size."""
        self._complete()
        return self.known_keys(block_size, chain=chain)

    def known_keys(self, block_size: int, *, chain: Chain = chain_ends) -> list[BlockKey]:
        """The same without the blocks that nobody can hold, because their end was put off."""
        keys = self._keys.get(block_size)
        if keys is None:
            data, keys, extra = self.data, [], self.first_extra
            if self.stem is not None:
                keys, rest = self.stem.keys(block_size, self.seed, extra, chain)
                data = rest + data
            num_bytes = block_size * BYTES_PER_TOKEN
            keys += chain(
                data,
                ends=range(num_bytes, len(data) + 1, num_bytes),
                parent=keys[-1] if keys else self.seed,
                extras=() if keys or not extra else (extra,),
            )
            self._keys[block_size] = keys
        return keys

    def grid(self, block_size: int) -> Marks:
        """Where its marks are, if workers' blocks have this size."""
        return TEXT_MARKS if self.is_text else marks_of(block_size)

    def marks(self, block_size: int, *, chain: Chain = chain_ends) -> list[BlockKey]:
        """Keys at growing distances (`marks.py`): of a text its own, else some that are known."""
        kind = 0 if self.is_text else block_size
        marks = self._marks.get(kind)
        if marks is None:
            grid = self.grid(block_size)
            if not self.is_text:
                keys = self.known_keys(block_size, chain=chain)
                marks = [keys[i] for i in grid.places(grid.num(len(keys) * block_size))]
            else:
                num_marks = grid.num(len(self.data) // BYTES_PER_TOKEN)
                extras = (self.first_extra,) if self.first_extra else ()
                ends = grid.byte_ends(num_marks)
                marks = chain(self.data, ends=ends, parent=self.seed, extras=extras)
            self._marks[kind] = marks
        return marks

    def _complete(self) -> None:
        if self.more is not None:
            self.data += self.more()
            self.more, self.num_more = None, 0
            self._keys.clear()
            self._marks.clear()

    def named_every(self, num_tokens: int) -> list[BlockKey]:
        """Of the keys computed so far those that name so many tokens, twice as many, and so on.

        None if there are none, or if blocks do not end there. Those of the largest blocks, so that
        prompts of one fleet are named alike, in whichever order their keys were computed.
        """
        marks = self._marks.get(0)
        if marks is not None:
            return [marks[place] for place in TEXT_MARKS.multiples(num_tokens, len(marks))]
        for block_size, keys in sorted(self._keys.items(), reverse=True):
            if num_tokens % block_size == 0:
                step = num_tokens // block_size
                return keys[step - 1 :: step]
        return []


def token_prompt(
    token_ids: Sequence[int], *, lora_name: str | None = None, cache_salt: str | None = None
) -> Prompt:
    """A prompt of token ids; adapter and salt make it a different one. May raise OverflowError."""
    return packed_prompt(pack_tokens(token_ids), lora_name=lora_name, cache_salt=cache_salt)


def packed_prompt(
    data: bytes,
    *,
    stem: Stem | None = None,
    more: Callable[[], bytes] | None = None,
    num_more: int = 0,
    lora_name: str | None = None,
    cache_salt: str | None = None,
) -> Prompt:
    """A prompt of token ids that `pack_tokens` has packed: those of `stem`, these, then `more`."""
    return Prompt(
        data=data,
        stem=stem,
        more=more,
        num_more=num_more,
        seed=_BASE_SEED if lora_name is None else token_seed(lora_name),
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


_BASE_SEED = token_seed(None)


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Four bytes a token; ids outside 32 bits raise OverflowError."""
    return array("I", token_ids).tobytes()


def pack_extra(extra: Sequence[object]) -> bytes:
    """What besides tokens names a block, as bytes; nothing packs to nothing."""
    return msgspec.msgpack.encode(list(extra)) if extra else b""


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
