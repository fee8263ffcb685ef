"""What an endpoint says, event by event, as OpenAI's API streams it."""

from collections.abc import Iterator
from typing import Any

import msgspec

DONE = b"[DONE]"
_PREFIX = b"data:"


class Details(msgspec.Struct):
    """Where a prompt's tokens came from."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What a request used; all counts are the endpoint's."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """None if the endpoint does not say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Said(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """One chunk of a stream, or a whole answer."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None

    @property
    def text(self) -> str:
        """What it adds to the answer; thoughts count, since they are tokens too."""
        return "".join(map(_text, self.choices))

    @property
    def has_output(self) -> bool:
        """Whether it carries any token that shows."""
        return any(_text(choice) or _calls(choice) for choice in self.choices)

    @property
    def is_last(self) -> bool:
        """Whether a choice is complete."""
        return any(choice.finish_reason is not None for choice in self.choices)


class EventStream:
    """Cuts bytes, however they come, into the data of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of each line that is whole now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(_PREFIX):
                yield line[len(_PREFIX) :].strip()


def decode(data: bytes) -> Event:
    """An event; msgspec.DecodeError if it is none."""
    return _decoder.decode(data)


def error_kind(error: Any, status: int) -> str:
    """A word for an error object, as OpenAI's, vLLM's or another server shapes it."""
    if isinstance(error, dict):
        kind = error.get("type") or error.get("code")
        if kind:
            return f"{status} {kind}" if status != 200 else str(kind)
    return f"{status}" if status != 200 else "error"


_decoder = msgspec.json.Decoder(Event)


def _said(choice: _Choice) -> _Said | None:
    return choice.delta or choice.message


def _text(choice: _Choice) -> str:
    said = _said(choice)
    if said is None:
        return choice.text or ""
    return (said.reasoning_content or said.reasoning or "") + (said.content or "")


def _calls(choice: _Choice) -> bool:
    said = _said(choice)
    return said is not None and bool(said.tool_calls)
