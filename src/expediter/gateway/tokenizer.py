"""A prompt's tokens, at the cost of what is new in it.

Special tokens are borders: a tokenizer encodes what lies between two of them by itself. So a
rendered conversation is cut there, at the ends of its turns if those can be told, each segment's
tokens are remembered by its hash, and a long conversation costs only its new turn. Whether a
tokenizer keeps to that is tried out when it is loaded; one that does not encodes prompts whole.
What lies between borders is encoded by tiktoken where that is known to give the same ids.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import xxhash

from expediter.routing.prompt import pack_tokens
from expediter.tokenizer import Tokenizer
from expediter.tokenizer.byte_pairs import build_byte_pairs

T = TypeVar("T")

MAX_CHARS_INLINE = 8192  # at most 2 ms of encoding; more runs off the event loop
DEFAULT_MEMO_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 250  # of a remembered segment, besides its tokens

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
_SHORT_CHARS, _MAX_SHORT = 12, 4096


class SegmentMemo:
    """Packed tokens of segments by name, at most so many bytes, least recently used out first."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tokens: OrderedDict[bytes, bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, name: bytes) -> bytes | None:
        """The segment's tokens, if they are remembered."""
        tokens = self._tokens.get(name)
        if tokens is not None:
            self._tokens.move_to_end(name)
        return tokens

    def put(self, name: bytes, tokens: bytes) -> None:
        """Remember; forget others if there is no room."""
        if name in self._tokens:
            return
        self._tokens[name] = tokens
        self.num_bytes += len(tokens) + _ENTRY_BYTES
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= len(self._tokens.popitem(last=False)[1]) + _ENTRY_BYTES


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
        self._pieces = _Pieces(tokenizer, self._borders) if self._borders else None
        self._turn_end = _turn_end(tokenizer, self._borders) if self._borders else None
        self.num_in_background = 0  # how often there was much to encode
        self._special_tokens = pack_tokens(tokenizer.encode("", add_special_tokens=True))

    @property
    def lone_borders(self) -> re.Pattern[str] | None:
        """Matches a border at the start of a text that no text before it can change."""
        if self._borders is None:
            return None
        added = self.tokenizer.backend.get_added_tokens_decoder().values()
        contents = [token.content for token in added]
        found = [c for c in contents if self._borders.fullmatch(c) and _is_lone(c, contents)]
        return re.compile("|".join(map(re.escape, found))) if found else None

    @property
    def cuts(self) -> bool:
        """Whether prompts are encoded by segments."""
        return self._borders is not None

    async def pack(self, text: str, *, add_special_tokens: bool) -> bytes:
        """The text's tokens; much new text is encoded in a thread."""
        adds = add_special_tokens and not self.cuts  # else they are a prefix like any other
        segments = self._cut(text)
        names = [xxhash.xxh3_128_digest(segment, seed=adds) for segment in segments]
        found = {name: self.memo.get(name) for name in names}
        new = {name: s for name, s in zip(names, segments, strict=True) if found[name] is None}
        if new:
            encoded = await self._encode(list(new.values()), add_special_tokens=adds)
            for name, tokens in zip(new, encoded, strict=True):
                found[name] = tokens
                self.memo.put(name, tokens)
        prefix = self._special_tokens if add_special_tokens and self.cuts else b""
        return prefix + b"".join([found[name] or b"" for name in names])

    async def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Each text's tokens, none remembered; `lone_borders` must part them in the whole."""
        data = [text.encode("utf-8", "surrogatepass") for text in texts]
        return await self._encode(data, add_special_tokens=False)

    def encode_short(self, text: str) -> bytes:
        """The tokens of one short text, at once; otherwise like `encode`."""
        assert self._pieces is not None, "there are borders"
        return self._pieces.pack(text)

    def _cut(self, text: str) -> list[bytes]:
        """The text's segments in UTF-8: whole turns if their end is known, else between borders."""
        if self._borders is not None and self._turn_end is None:
            parts = self._borders.split(text)
            return [part.encode("utf-8", "surrogatepass") for part in parts if part]
        data = text.encode("utf-8", "surrogatepass")
        if self._turn_end is None:
            return [data]
        *turns, rest = data.split(self._turn_end)
        segments = [turn + self._turn_end for turn in turns]
        return [*segments, rest] if rest else segments

    async def _encode(self, segments: Sequence[bytes], *, add_special_tokens: bool) -> list[bytes]:
        texts = [segment.decode("utf-8", "surrogatepass") for segment in segments]

        def encode() -> list[bytes]:
            if self._pieces is not None:
                return [self._pieces.pack(text) for text in texts]
            encode = self.tokenizer.encode
            return [
                pack_tokens(encode(text, add_special_tokens=add_special_tokens)) for text in texts
            ]

        if sum(map(len, texts)) <= MAX_CHARS_INLINE:
            return encode()
        self.num_in_background += 1
        return await self.in_background(encode)

    async def in_background(self, work: Callable[[], T]) -> T:
        """Do it in the executor, where encoding is done."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


class _Pieces:
    """Encodes a segment border by border, by tiktoken if it can; adds no special tokens."""

    def __init__(self, tokenizer: Tokenizer, borders: re.Pattern[str]) -> None:
        self._tokenizer = tokenizer
        self._split = borders.split
        added = tokenizer.backend.get_added_tokens_decoder().items()
        self._packed = {token.content: pack_tokens([i]) for i, token in added}
        # A choice of borders that do not all begin alike is far slower to look for than each is.
        beginnings = {content[:1] for content in self._packed}
        self._beginnings = (
            {content[:2] for content in self._packed} if len(beginnings) > 1 else beginnings
        )
        are_all_borders = all(borders.fullmatch(content) for content in self._packed)
        self._packed[""] = b""
        self._byte_pairs = build_byte_pairs(tokenizer.backend) if are_all_borders else None

    def pack(self, text: str) -> bytes:
        """The segment's tokens."""
        pairs = self._byte_pairs
        if pairs is None:
            return self._pack_whole(text)
        if not any(beginning in text for beginning in self._beginnings):
            packed = pairs.pack(text)
            return self._pack_whole(text) if packed is None else packed
        found = []
        for part in self._split(text):
            piece = self._packed.get(part)
            if piece is None:
                piece = pairs.pack(part)
                if piece is None:
                    piece = self._pack_whole(part)
                elif len(part) <= _SHORT_CHARS and len(self._packed) < _MAX_SHORT:
                    self._packed[part] = piece  # line breaks and roles, mostly
            found.append(piece)
        return b"".join(found)

    def _pack_whole(self, text: str) -> bytes:
        return pack_tokens(self._tokenizer.encode(text, add_special_tokens=False))


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


def _turn_end(tokenizer: Tokenizer, borders: re.Pattern[str]) -> bytes | None:
    """The border that ends a turn in the chat template, if no other can share its characters.

    It is among the tokens that end an answer. Cutting there alone makes far fewer segments.
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    contents = {token.content for token in added.values()}
    for token_id in sorted(tokenizer.eos_token_ids & added.keys()):
        content = added[token_id].content
        is_border = borders.fullmatch(content) is not None
        if is_border and _is_lone(content, contents) and content in (tokenizer.chat_template or ""):
            return content.encode()
    return None


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


def _is_lone(content: str, contents: Iterable[str]) -> bool:
    """Whether no added token, nor itself, can share characters with an occurrence."""
    ends_as_it_begins = any(content[-n:] == content[:n] for n in range(1, len(content)))
    others = (other for other in contents if other != content)
    return not ends_as_it_begins and not any(_overlap(content, other) for other in others)


def _overlap(one: str, other: str) -> bool:
    """Whether occurrences of the two could share characters."""
    if one in other or other in one:
        return True
    shorter = min(len(one), len(other))
    return any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, shorter))
