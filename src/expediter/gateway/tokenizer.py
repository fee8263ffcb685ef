"""A prompt's tokens, at the cost of what is new in it.

Special tokens are borders: a tokenizer encodes what lies between two of them by itself. So a
rendered conversation is cut there, each segment's tokens are remembered, and a long conversation
costs only its new turn. Whether a tokenizer keeps to that is tried out when it is loaded; one
that does not encodes every prompt whole.
"""

import asyncio
import re
import sys
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from expediter.routing.prompt import pack_tokens
from expediter.tokenizer import Tokenizer

MAX_CHARS_INLINE = 8192  # about 2 ms of encoding; more runs off the event loop
DEFAULT_MEMO_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 300  # of a remembered segment, besides text and tokens

_PROBES = (
    "",
    " ",
    "\n",
    "user\nhello there",
    " leading and trailing ",
    "\n\nassistant\n",
    "1234 + 5678",
    "naïve 中文 \U0001f600",
    "    indented(code);\n\treturn",
)
_NUM_BORDERS_TRIED = 32


class Segment(NamedTuple):
    """A text that is encoded by itself, with what the tokenizer adds to a prompt or without."""

    text: str
    with_special_tokens: bool


class SegmentMemo:
    """Packed tokens of segments, least recently used out first, within a number of bytes."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tokens: OrderedDict[Segment, bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, segment: Segment) -> bytes | None:
        """The segment's tokens, if they are remembered."""
        tokens = self._tokens.get(segment)
        if tokens is not None:
            self._tokens.move_to_end(segment)
        return tokens

    def put(self, segment: Segment, tokens: bytes) -> None:
        """Remember; forget others if there is no room."""
        if segment in self._tokens:
            return
        self._tokens[segment] = tokens
        self.num_bytes += _num_bytes(segment, tokens)
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= _num_bytes(*self._tokens.popitem(last=False))


class PromptTokenizer:
    """Texts to packed tokens (`routing/prompt.py`), equal to `Tokenizer.encode` of the whole."""

    def __init__(
        self, tokenizer: Tokenizer, *, executor: Executor, max_memo_bytes: int = DEFAULT_MEMO_BYTES
    ) -> None:
        """Tries the tokenizer out, which takes some milliseconds."""
        self.tokenizer = tokenizer
        self._executor = executor
        self.memo = SegmentMemo(max_bytes=max_memo_bytes)
        self._borders = find_borders(tokenizer)

    @property
    def cuts(self) -> bool:
        """Whether prompts are encoded by segments."""
        return self._borders is not None

    async def pack(self, text: str, *, add_special_tokens: bool) -> bytes:
        """The text's tokens; much new text is encoded in a thread."""
        segments = self._cut(text, add_special_tokens=add_special_tokens)
        found = {segment: self.memo.get(segment) for segment in segments}
        new = [segment for segment, tokens in found.items() if tokens is None]
        if new:
            if sum(len(segment.text) for segment in new) <= MAX_CHARS_INLINE:
                encoded = self._encode(new)
            else:
                loop = asyncio.get_running_loop()
                encoded = await loop.run_in_executor(self._executor, self._encode, new)
            for segment, tokens in zip(new, encoded, strict=True):
                found[segment] = tokens
                self.memo.put(segment, tokens)
        return b"".join([found[segment] or b"" for segment in segments])

    def _cut(self, text: str, *, add_special_tokens: bool) -> list[Segment]:
        if self._borders is None:
            return [Segment(text, add_special_tokens)]
        segments = [Segment(part, False) for part in self._borders.split(text) if part]
        return [Segment("", True), *segments] if add_special_tokens else segments

    def _encode(self, segments: Sequence[Segment]) -> list[bytes]:
        encode = self.tokenizer.encode
        return [
            pack_tokens(encode(segment.text, add_special_tokens=segment.with_special_tokens))
            for segment in segments
        ]


def find_borders(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """A pattern whose matches cut a text without changing its tokens; None if there is none."""
    backend = tokenizer.backend
    added = list(backend.get_added_tokens_decoder().values())
    plain = [
        token
        for token in added
        if not (token.lstrip or token.rstrip or token.single_word)
        and not (token.normalized and backend.normalizer is not None)
    ]
    others = {token.content for token in added} - {token.content for token in plain}
    contents = [
        token.content for token in plain if not any(_overlap(token.content, o) for o in others)
    ]
    contents.sort(key=len, reverse=True)
    if not contents:
        return None
    borders = re.compile("(" + "|".join(map(re.escape, contents)) + ")")
    tried = contents[:_NUM_BORDERS_TRIED]
    return borders if all(_cuts_well(tokenizer, borders, border) for border in tried) else None


def _cuts_well(tokenizer: Tokenizer, borders: re.Pattern[str], border: str) -> bool:
    """Whether probe texts around a border have the tokens of their parts."""
    prefix = tokenizer.encode("", add_special_tokens=True)
    for before, after in zip(_PROBES, _PROBES[1:] + _PROBES[:1], strict=True):
        text = before + border + after + border + border + before
        parts = [
            token
            for part in borders.split(text)
            for token in tokenizer.encode(part, add_special_tokens=False)
        ]
        if parts != tokenizer.encode(text, add_special_tokens=False):
            return False
        if prefix + parts != tokenizer.encode(text, add_special_tokens=True):
            return False
    return True


def _overlap(one: str, other: str) -> bool:
    """Whether occurrences of the two could share characters."""
    if one in other or other in one:
        return True
    shorter = min(len(one), len(other))
    return any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, shorter))


def _num_bytes(segment: Segment, tokens: bytes) -> int:
    return sys.getsizeof(segment.text) + len(tokens) + _ENTRY_BYTES
