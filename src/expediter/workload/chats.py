"""Recorded conversations with their words: ShareGPT's files and OpenAI's JSON lines.

They hold no times, so arrivals come from outside, and no lengths, so a tokenizer counts. A
message is named by its role and words: prompts that begin with the same messages share them.
Messages that merely begin alike do not.
"""

import json
import random
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from expediter.config import Positive
from expediter.workload.distributions import Distribution, Lognormal
from expediter.workload.json_array import json_items
from expediter.workload.rows import json_lines
from expediter.workload.transcript import CountTokens, Role, Segment, TranscriptTree
from expediter.workload.turn import Turn

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "tool": "tool",
    "function": "tool",
}
PAUSE = Lognormal(20, 30)


class _Said(msgspec.Struct, rename={"speaker": "from"}):
    speaker: str
    value: str


class _ShareGPTItem(msgspec.Struct):
    conversations: list[_Said]
    id: str | int | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[Any] | None = None


class _Body(msgspec.Struct):
    messages: list[_Message] | None = None
    prompt: str | None = None
    tools: list[Any] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None


class _OpenAIRow(_Body):
    body: _Body | None = None  # of a batch file's line


def read_sharegpt(
    path: Path,
    *,
    starts: Iterable[float],
    count: CountTokens,
    rng: random.Random,
    pause: Distribution = PAUSE,
    label: str = "sharegpt",
) -> Iterator[Turn]:
    """One conversation for each start, in a closed loop; an array or JSON lines.

    Each answer in it is a turn whose prompt is all that was said before. Answers without a
    prompt and empty ones are no turns.
    """
    tree = TranscriptTree()
    for number, (start, (place, item)) in enumerate(zip(starts, json_items(path), strict=False)):
        with place.blamed():
            conversation = msgspec.convert(item, _ShareGPTItem)
            said = [
                _segment(_role(each.speaker), each.value, count=count)
                for each in conversation.conversations
            ]
        pauses: float | None = None
        for before, answer in _answers(said):
            yield Turn(
                arrival_time=start,
                transcript=tree.grow([*before, answer]),
                label=label,
                session=f"{label}/{number}",
                think_time=pauses,
            )
            pauses = pause.draw(rng)


def read_openai(
    path: Path,
    *,
    starts: Iterable[float],
    count: CountTokens,
    num_output_tokens: int = 256,
    label: str = "openai",
) -> Iterator[Turn]:
    """One request a line: a batch file's, a request's body, or a conversation to train on.

    The answer is the last message if that is the assistant's, else as long as the request
    allows, else `num_output_tokens` long.
    """
    tree = TranscriptTree()
    rows = json_lines(path, _OpenAIRow)
    for number, (start, (place, row)) in enumerate(zip(starts, rows, strict=False)):
        body = row.body or row
        with place.blamed():
            segments = _body_segments(body, count=count)
            if len(segments) < 2 or segments[-1].role != "assistant":
                limit = body.max_completion_tokens or body.max_tokens or num_output_tokens
                segments.append(Segment(f"{label}/{number}/answer", limit, "assistant"))
            if len(segments) < 2:
                raise ValueError("neither messages nor a prompt with words in it")
        yield Turn(arrival_time=start, transcript=tree.grow(segments), label=label)


def _role(name: str) -> Role:
    try:
        return _ROLES[name]
    except KeyError:
        raise ValueError(f"nobody is called {name!r}; known are {', '.join(_ROLES)}") from None


def _segment(role: Role, text: str, *, count: CountTokens) -> Segment:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return Segment(f"{role}:{digest}", count(text), role, text)


def _answers(said: list[Segment]) -> Iterator[tuple[list[Segment], Segment]]:
    """Each answer that has tokens and something before it, with what that is."""
    before: list[Segment] = []
    for segment in said:
        if segment.num_tokens == 0:
            continue
        if before and segment.role == "assistant":
            yield before, segment
        before.append(segment)


def _body_segments(body: _Body, *, count: CountTokens) -> list[Segment]:
    """The segments that have tokens; the tools' schemas come first, as templates put them."""
    segments = []
    if body.tools:
        segments.append(_segment("system", json.dumps(body.tools), count=count))
    if body.prompt is not None:
        segments.append(_segment("user", body.prompt, count=count))
    segments += [
        _segment(_role(message.role), _words(message), count=count)
        for message in body.messages or ()
    ]
    return [segment for segment in segments if segment.num_tokens]


def _words(message: _Message) -> str:
    """The text of a message; ValueError for images and sound, whose tokens cannot be counted."""
    content = message.content
    if isinstance(content, list):
        parts = [part.text for part in content]
        wrong = [part.type for part in content if part.text is None]
        if wrong:
            raise ValueError(f"a message has a part of type {wrong[0]!r}; only text can be counted")
        content = "".join(filter(None, parts))
    calls = json.dumps(message.tool_calls) if message.tool_calls else ""
    return (content or "") + calls
