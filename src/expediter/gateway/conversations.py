"""A conversation's tokens from its raw JSON, at the cost of its new turns.

Where the chat template writes turn by turn and special tokens part the turns, a turn's tokens
are its own. So beginnings of conversations are remembered by their bytes (`stems.py`), and where
none is known, each turn by the bytes of its messages: what was seen before is neither decoded,
nor rendered, nor encoded. A short last message that comes by for the first time is not encoded
until somebody asks for its tokens: no worker can hold it yet. One prompt in so many is also
rendered whole; a difference, which the probes would have missed, ends all this.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import msgspec
import xxhash

from expediter.errors import RequestError
from expediter.gateway.openai import decode_messages
from expediter.gateway.stems import DEFAULT_STEM_BYTES, Known, Seen, Stems
from expediter.gateway.tokenizer import MAX_CHARS_INLINE, PromptTokenizer
from expediter.routing.prompt import BYTES_PER_TOKEN
from expediter.routing.stem import Stem
from expediter.tokenizer.turns import ROLES, Message, TurnTemplate, find_turns

logger = logging.getLogger(__name__)

CHECKED_SHARE = 512
_HEAD, _TURN = 1, 2  # seeds that keep names of heads, turns and the tokenizer's segments apart
_COMMA = b" ,"
MAX_SEEN = 65_536  # prompts that are known to have come by
MAX_SHORT = 1024  # bytes of JSON for which remembering the turns costs more than encoding them

_messages = msgspec.json.Decoder(list[msgspec.Raw])
_digest = xxhash.xxh3_128_digest


class _Role(msgspec.Struct):
    role: str = ""


_roles = msgspec.json.Decoder(list[_Role])
_message = msgspec.json.Decoder(dict[str, Any])


class Read(NamedTuple):
    """A prompt's tokens: `stem`'s, then `data`, then those of `more` (see `Prompt`)."""

    stem: Stem | None
    data: bytes
    more: Callable[[], bytes] | None = None
    num_more: int = 0


class Conversations:
    """Reads messages as `PromptTokenizer.pack` does the text of the template."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        checked_share: int = CHECKED_SHARE,
        max_stem_bytes: int = DEFAULT_STEM_BYTES,
    ) -> None:
        """Tries the template out, which takes some milliseconds."""
        self._tokenizer = tokenizer
        self._memo = tokenizer.memo
        self.stems = Stems(max_bytes=max_stem_bytes)
        self._seen = Seen(max_names=MAX_SEEN)
        self._template = find_turns(tokenizer.tokenizer)
        self._starts_turn = tokenizer.lone_borders
        self._checked_share = checked_share
        self._num_read = 0
        self._opening = b""
        if self._template is not None and self._starts_turn is not None:
            opening = self._template.opening
            if opening and not self._starts_turn.match(opening):
                self._template = None
            elif opening:
                self._opening = tokenizer.encode_short(opening)
        self._encoding = asyncio.Lock()
        self._plain_roles = {role for role in ROLES if self._stands_alone(role)}

    async def read(self, raw: msgspec.Raw, *, opens: bool) -> Read | None:
        """The tokens of messages, with the answer's opening if it `opens`; None if unknown."""
        template = self._template
        if template is None or self._starts_turn is None:
            return None
        view = memoryview(raw)
        known = None if template.tells_time else self.stems.longest(view)
        try:
            found = None if known is None else await self._go_on(view, known, opens=opens)
            if found is None:
                found = await self._read(raw, view, template)
        except (RequestError, msgspec.DecodeError, RecursionError):
            return None
        if opens and found.more is None:
            found = found._replace(data=found.data + self._opening)
        self._num_read += 1
        if self._num_read % self._checked_share == 0:
            return await self._checked(raw, found, opens=opens)
        return found

    async def _go_on(self, view: memoryview, known: Known, *, opens: bool) -> Read | None:
        """What follows a known beginning; None if that ends within a turn.

        Raises RequestError if turns' tokens are not their own, or DecodeError.
        """
        if known.end == len(view) - 1:
            return Read(known.stem, b"")
        rest = b"[" + view[known.end :].tobytes().lstrip(_COMMA)
        messages = [bytes(message) for message in _messages.decode(rest)]
        roles = _roles.decode(rest)
        if roles[0].role == "tool":
            return None
        turns = _by_turns(messages, roles)
        if self._can_wait(turns[-1], known.name):
            return await self._put_off(view, known, turns, opens=opens)
        if len(rest) > MAX_SHORT:
            packed = await self._turns(turns)
        else:
            packed = [self._tokenizer.encode_short(self._text(turn)) for turn in turns]
        return self._grown(view, known, turns, packed)

    def _can_wait(self, turn: Sequence[bytes], name: bytes) -> bool:
        """Whether the last turn is short, and comes by for the first time.

        Then no worker holds it, as far as this process can know.
        """
        if len(turn) > 1 or len(turn[0]) > MAX_SHORT:
            return False
        message = _message.decode(turn[0])
        role, content = message.get("role"), message.get("content")
        if len(message) != 2 or not isinstance(role, str) or not isinstance(content, str):
            return False
        if role not in self._plain_roles:
            return False
        return not self._seen.add(name)

    async def _put_off(
        self, view: memoryview, known: Known, turns: Sequence[Sequence[bytes]], *, opens: bool
    ) -> Read:
        """All but the last turn, which is encoded when somebody asks for it."""
        *others, last = turns
        if others:
            found = self._grown(view, known, turns, await self._turns(others))
        else:
            found = Read(known.stem, b"")

        def more() -> bytes:
            data = self._tokenizer.encode_short(self._text(last))
            return data + self._opening if opens else data

        return found._replace(more=more, num_more=len(last[0]) // BYTES_PER_TOKEN)

    def _stands_alone(self, role: str) -> bool:
        beginning = self._template.beginning(role) if self._template is not None else None
        starts = self._starts_turn
        return beginning is not None and starts is not None and starts.match(beginning) is not None

    async def _read(self, raw: msgspec.Raw, view: memoryview, template: TurnTemplate) -> Read:
        """Head and turns from the beginning; raises what `_go_on` does."""
        messages = [bytes(message) for message in _messages.decode(raw)]
        if not messages:
            raise RequestError("messages are empty", param="messages")
        turns = _by_turns(messages, _roles.decode(raw))
        head, turns = turns[: template.num_head_turns], turns[template.num_head_turns :]
        packed = [await self._head(head, template)]
        packed += await self._turns(turns)
        if template.tells_time or len(head) < template.num_head_turns:
            return Read(None, b"".join(packed))
        turns = [[message for turn in head for message in turn], *turns]
        return self._grown(view, None, turns, packed)

    def _grown(
        self,
        view: memoryview,
        known: Known | None,
        turns: Sequence[Sequence[bytes]],
        packed: Sequence[bytes],
    ) -> Read:
        """A conversation that is remembered from now on."""
        stem = self.stems.grow(view, known, turns, packed)
        if stem is None:
            return Read(known.stem if known is not None else None, b"".join(packed))
        return Read(stem, b"")

    async def _head(self, turns: Sequence[Sequence[bytes]], template: TurnTemplate) -> bytes:
        name = _digest(b"".join([b"".join(turn) for turn in turns]), seed=_HEAD)
        packed = None if template.tells_time else self._memo.get(name)
        if packed is None:
            text = template.head([_decode(turn) for turn in turns])
            packed = await self._tokenizer.pack(text, add_special_tokens=False)
            if not template.tells_time:
                self._memo.put(name, packed)
        return packed

    async def _turns(self, turns: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Each turn's tokens; raises RequestError if they are not its own."""
        names = [_digest(b"".join(turn), seed=_TURN) for turn in turns]
        found = [self._memo.get(name) for name in names]
        if None in found:
            new = [turn for turn, packed in zip(turns, found, strict=True) if packed is None]
            is_long = sum(len(message) for turn in new for message in turn) > MAX_CHARS_INLINE
            # Many may wait for one new conversation: the first of them encodes it.
            async with self._encoding if is_long else nullcontext():
                await self._encode_missing(names, turns, found)
        return [packed or b"" for packed in found]

    async def _encode_missing(
        self,
        names: Sequence[bytes],
        turns: Sequence[Sequence[bytes]],
        found: list[bytes | None],
    ) -> None:
        """Fill the gaps in `found`; raises RequestError if a turn's tokens are not its own."""
        missing = []
        for place, packed in enumerate(found):
            if packed is None:
                found[place] = self._memo.get(names[place])
                if found[place] is None:
                    missing.append(place)
        texts = [self._text(turns[place]) for place in missing]
        for place, packed in zip(missing, await self._tokenizer.encode(texts), strict=True):
            self._memo.put(names[place], packed)
            found[place] = packed

    def _text(self, turn: Sequence[bytes]) -> str:
        """What the template makes of a turn; raises RequestError if others could change it."""
        assert self._template is not None
        assert self._starts_turn is not None
        text = self._template.turn(_decode(turn))
        if not self._starts_turn.match(text):
            raise RequestError("turns are not parted by special tokens", param="messages")
        return text

    async def _checked(self, raw: msgspec.Raw, found: Read, *, opens: bool) -> Read:
        messages = decode_messages(raw) or []
        try:
            text = self._tokenizer.tokenizer.render_chat(messages, add_generation_prompt=opens)
        except RequestError:
            return found  # the worker will refuse it
        whole = await self._tokenizer.pack(text, add_special_tokens=False)
        start = found.stem.whole if found.stem is not None else b""
        if whole == start + found.data + (found.more() if found.more is not None else b""):
            return found
        logger.warning("the chat template does not write turn by turn: it is rendered whole")
        self._template = None
        return Read(None, whole)


def _by_turns(messages: Sequence[bytes], roles: Sequence[_Role]) -> list[list[bytes]]:
    """Messages, each with the tools' results that follow it."""
    turns: list[list[bytes]] = []
    for message, role in zip(messages, roles, strict=True):
        if turns and role.role == "tool":
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


def _decode(turn: Sequence[bytes]) -> list[Message]:
    return [_message.decode(message) for message in turn]
