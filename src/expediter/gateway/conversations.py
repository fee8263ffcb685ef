"""A conversation's tokens from its raw JSON, at the cost of its new turns.

Where the chat template writes turn by turn and special tokens part the turns, a turn's tokens
are its own. So they are remembered by the bytes of its messages: a turn that was seen before is
neither decoded, nor rendered, nor encoded. One prompt in so many is also rendered whole; a
difference, which the probes would have missed, ends all this.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import xxhash

from expediter.errors import RequestError
from expediter.gateway.openai import decode_messages
from expediter.gateway.tokenizer import MAX_CHARS_INLINE, PromptTokenizer
from expediter.tokenizer.turns import Message, find_turns

logger = logging.getLogger(__name__)

CHECKED_SHARE = 512
_HEAD, _TURN = 1, 2  # seeds that keep names of heads, turns and the tokenizer's segments apart
_TOOL = b'"tool"'

_messages = msgspec.json.Decoder(list[msgspec.Raw])
_digest = xxhash.xxh3_128_digest


class _Role(msgspec.Struct):
    role: str = ""


_role = msgspec.json.Decoder(_Role)
_message = msgspec.json.Decoder(dict[str, Any])


class Conversations:
    """Packs messages like `PromptTokenizer.pack` does the text of the template."""

    def __init__(self, tokenizer: PromptTokenizer, *, checked_share: int = CHECKED_SHARE) -> None:
        """Tries the template out, which takes some milliseconds."""
        self._tokenizer = tokenizer
        self._memo = tokenizer.memo
        self._template = find_turns(tokenizer.tokenizer)
        self._starts_turn = tokenizer.lone_borders
        self._checked_share = checked_share
        self._num_packed = 0
        if self._template is not None and self._starts_turn is not None:
            opening = self._template.opening
            if opening and not self._starts_turn.match(opening):
                self._template = None
        self._opening: bytes | None = None
        self._encoding = asyncio.Lock()

    async def pack(self, raw: msgspec.Raw, *, opens: bool) -> bytes | None:
        """The tokens of messages, with the answer's opening if it `opens`; None if unknown."""
        template = self._template
        if template is None or self._starts_turn is None:
            return None
        try:
            found = await self._pack(_messages.decode(raw), num_head=template.num_head_turns)
        except (RequestError, msgspec.DecodeError, RecursionError):
            return None
        if opens:
            if self._opening is None:
                self._opening = await self._tokenizer.pack(
                    template.opening, add_special_tokens=False
                )
            found.append(self._opening)
        data = b"".join(found)
        self._num_packed += 1
        if self._num_packed % self._checked_share == 0:
            return await self._checked(raw, data, opens=opens)
        return data

    async def _pack(self, messages: Sequence[msgspec.Raw], *, num_head: int) -> list[bytes]:
        """The tokens of the head and of each turn after it.

        Raises RequestError if they are not their own, or DecodeError.
        """
        if not messages:
            raise RequestError("messages are empty", param="messages")
        head, names = self._names(messages, num_head=num_head)
        packed, found = self._recall(head), [self._memo.get(name) for name in names]
        if packed is not None and None not in found:
            # No message among these is a tool's result: those are never turns by themselves.
            return [packed, *found]  # type: ignore[list-item]
        unknown = [m for m, p in zip(messages[num_head:], found, strict=False) if p is None]
        if packed is None or any(_TOOL in bytes(message) for message in unknown):
            turns = _by_turns(messages)
            heads, turns = turns[:num_head], turns[num_head:]
            packed = await self._head(heads)
            names = [_digest(b"".join(turn), seed=_TURN) for turn in turns]
            found = [self._memo.get(name) for name in names]
        else:
            turns = [[message] for message in messages[num_head:]]
        return [packed, *await self._turns(turns, names, found)]

    def _names(
        self, messages: Sequence[msgspec.Raw], *, num_head: int
    ) -> tuple[bytes, list[bytes]]:
        """What head and turns are called if every message is a turn of its own."""
        head = _digest(b"".join(messages[:num_head]), seed=_HEAD)
        return head, [_digest(message, seed=_TURN) for message in messages[num_head:]]

    def _recall(self, head: bytes) -> bytes | None:
        """The head's tokens by its name; never, if the template tells the time there."""
        assert self._template is not None
        return None if self._template.tells_time else self._memo.get(head)

    async def _head(self, turns: Sequence[Sequence[msgspec.Raw]]) -> bytes:
        assert self._template is not None
        name = _digest(b"".join([b"".join(turn) for turn in turns]), seed=_HEAD)
        packed = self._recall(name)
        if packed is None:
            text = self._template.head([_decode(turn) for turn in turns])
            packed = await self._tokenizer.pack(text, add_special_tokens=False)
            if not self._template.tells_time:
                self._memo.put(name, packed)
        return packed

    async def _turns(
        self,
        turns: Sequence[Sequence[msgspec.Raw]],
        names: Sequence[bytes],
        found: list[bytes | None],
    ) -> list[bytes]:
        """Each turn's tokens; raises RequestError if they are not its own."""
        if None in found:
            new = [turn for turn, packed in zip(turns, found, strict=True) if packed is None]
            is_long = sum(memoryview(m).nbytes for turn in new for m in turn) > MAX_CHARS_INLINE
            # Many may wait for one new conversation: the first of them encodes it.
            async with self._encoding if is_long else nullcontext():
                await self._encode_missing(names, turns, found)
        return [packed or b"" for packed in found]

    async def _encode_missing(
        self,
        names: Sequence[bytes],
        turns: Sequence[Sequence[msgspec.Raw]],
        found: list[bytes | None],
    ) -> None:
        """Fill the gaps in `found`; raises RequestError if a turn's tokens are not its own."""
        assert self._template is not None
        assert self._starts_turn is not None
        missing = []
        for place, packed in enumerate(found):
            if packed is None:
                found[place] = self._memo.get(names[place])
                if found[place] is None:
                    missing.append(place)
        texts = [self._template.turn(_decode(turns[place])) for place in missing]
        if not all(map(self._starts_turn.match, texts)):
            raise RequestError("turns are not parted by special tokens", param="messages")
        for place, packed in zip(missing, await self._tokenizer.encode(texts), strict=True):
            self._memo.put(names[place], packed)
            found[place] = packed

    async def _checked(self, raw: msgspec.Raw, data: bytes, *, opens: bool) -> bytes:
        messages = decode_messages(raw) or []
        try:
            text = self._tokenizer.tokenizer.render_chat(messages, add_generation_prompt=opens)
        except RequestError:
            return data  # the worker will refuse it
        whole = await self._tokenizer.pack(text, add_special_tokens=False)
        if whole != data:
            logger.warning("the chat template does not write turn by turn: it is rendered whole")
            self._template = None
        return whole


def _by_turns(messages: Sequence[msgspec.Raw]) -> list[list[msgspec.Raw]]:
    """Messages, undecoded, each with the tools' results that follow it; may raise DecodeError."""
    turns = [[message] for message in messages[:1]]
    for message in messages[1:]:
        if _TOOL in bytes(message) and _role.decode(message).role == "tool":
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


def _decode(turn: Sequence[msgspec.Raw]) -> list[Message]:
    messages: list[Message] = [_message.decode(message) for message in turn]
    if messages[0].get("role") == "tool":  # spelled with escapes: its turn began before
        raise RequestError("a tool's result without its turn", param="messages")
    return messages
