"""What has been said so far, as pieces with names instead of tokens.

A name stands for a text without end; a segment is the first `num_tokens` tokens of it. A
transcript is a path in a tree of segments: prompts that begin alike are the same objects up to
where they part. So the blocks of a shared beginning are named once, and no token is ever made.

A block's name says which prefix ends with it: a digest of the path down to the segment in which
the block ends, and the place of its end. Two transcripts have a name in common exactly where all
tokens up to there are the same.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
CountTokens = Callable[[str], int]
"""How many tokens a text has."""

NAME_BYTES = 32
_PLACE_BYTES = 4
_DIGEST_BYTES = NAME_BYTES - _PLACE_BYTES


class Segment(msgspec.Struct, frozen=True):
    """The first `num_tokens` tokens of the text called `name`.

    `text` is set where the words are known, not made up; the same name then means the same words.
    """

    name: str
    num_tokens: int
    role: Role = "user"
    text: str | None = None


class Transcript:
    """A segment and all that came before it; immutable, and equal only to itself.

    `num_tokens` counts from the very beginning.
    """

    __slots__ = ("_block_size", "_digest", "_names", "before", "num_tokens", "segment")

    def __init__(self, segment: Segment, *, before: "Transcript | None") -> None:
        self.segment = segment
        self.before = before
        self._block_size = 0
        self._names: list[bytes] = []
        if before is None:
            self.num_tokens = 0
            self._digest = bytes(_DIGEST_BYTES)
            return
        self.num_tokens = before.num_tokens + segment.num_tokens
        start = before.num_tokens.to_bytes(_PLACE_BYTES, "big")
        path = before._digest + start + segment.name.encode()
        self._digest = blake2b(path, digest_size=_DIGEST_BYTES).digest()

    def then(
        self, name: str, num_tokens: int, *, role: Role = "user", text: str | None = None
    ) -> "Transcript":
        """This and one more segment; see `plus`."""
        return self.plus(Segment(name, num_tokens, role, text))

    def plus(self, segment: Segment) -> "Transcript":
        """This and one more segment; itself if that has no tokens."""
        if segment.num_tokens > 0:
            return Transcript(segment, before=self)
        if segment.num_tokens == 0:
            return self
        raise ValueError(f"segment {segment.name!r} has {segment.num_tokens} tokens")

    @property
    def segments(self) -> list[Segment]:
        """From the first to the last."""
        found = [node.segment for node in self.path()]
        found.reverse()
        return found

    @property
    def name(self) -> bytes:
        """32 bytes that name the whole of it, whether or not a block ends with it."""
        return self._digest + self.num_tokens.to_bytes(_PLACE_BYTES, "big")

    @property
    def text_name(self) -> bytes:
        """28 bytes that name the last segment's text and all before it, whatever of it is said."""
        return self._digest

    def block_hashes(self, block_size: int) -> list[bytes]:
        """The names of all full blocks, in a list of the caller's own.

        Those of larger blocks are among those of smaller ones that divide them.
        """
        own = [node._own_names(block_size) for node in self.path()]
        own.reverse()
        return list(chain.from_iterable(own))

    def path(self) -> "Iterable[Transcript]":
        """From the last segment to the first."""
        node = self
        while node.before is not None:
            yield node
            node = node.before

    def _own_names(self, block_size: int) -> list[bytes]:
        """Names of the blocks that end in this segment, remembered for one block size."""
        if self._block_size != block_size:
            assert self.before is not None
            first, end = self.before.num_tokens // block_size, self.num_tokens // block_size
            places = _places(block_size, num_blocks=1 << end.bit_length())[first:end]
            self._names = list(map(self._digest.__add__, places))
            self._block_size = block_size
        return self._names


@lru_cache(maxsize=64)
def _places(block_size: int, *, num_blocks: int) -> list[bytes]:
    """Where blocks end, as names say it: made once, they are half of what a name costs."""
    ends = range(block_size, num_blocks * block_size + 1, block_size)
    return [end.to_bytes(_PLACE_BYTES, "big") for end in ends]


EMPTY = Transcript(Segment("", 0), before=None)
"""Where every transcript begins."""


class TranscriptTree:
    """Makes one object of equal beginnings, for readers of rows that spell them out each time.

    It forgets everything after `max_segments`: that costs time later, never a wrong name.
    """

    def __init__(self, *, max_segments: int = 16_384) -> None:
        self._max_segments = max_segments
        self._nodes: dict[tuple[Transcript, Segment], Transcript] = {}

    def grow(self, segments: Iterable[Segment], *, after: Transcript = EMPTY) -> Transcript:
        """`after` and then these segments; empty ones are left out."""
        node = after
        for segment in segments:
            key = node, segment
            known = self._nodes.get(key)
            if known is None:
                known = node.plus(segment)
                if len(self._nodes) >= self._max_segments:
                    self._nodes.clear()
                self._nodes[key] = known
            node = known
        return node
