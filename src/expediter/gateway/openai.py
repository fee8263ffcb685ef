"""The few fields of a request's body that routing needs; everything else stays bytes.

Values that only matter if a tokenizer sees them are kept as raw JSON. A body that is not what
its path promises is no error here: it is routed by load, and the worker says what is wrong.
"""

from typing import Any, TypeVar

import msgspec

COMPLETIONS = b"/v1/completions"
CHAT = b"/v1/chat/completions"
GENERATE = b"/generate"  # SGLang's own API, which its benchmark uses
_TEXT_FIELDS = {
    b"/v1/responses": ("tools", "instructions", "input"),
    b"/v1/messages": ("tools", "system", "messages"),
    CHAT: ("tools", "messages"),
}
_NOTHING = msgspec.Raw(b"")
F = TypeVar("F", bound="Facts")
_CLOSING = ord("]")


class Facts(msgspec.Struct, gc=False):
    """What any placement needs of a body, by the names of OpenAI's API and others' extensions."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    user: msgspec.Raw = _NOTHING
    kv_transfer_params: msgspec.Raw = _NOTHING
    bootstrap_host: msgspec.Raw = _NOTHING
    bootstrap_port: msgspec.Raw = _NOTHING
    bootstrap_room: msgspec.Raw = _NOTHING

    @property
    def max_output_tokens(self) -> int | None:
        """The caller's limit on the answer."""
        return self.max_completion_tokens or self.max_tokens


class Fields(Facts, gc=False):
    """And what its prompt is made of."""

    prompt: msgspec.Raw = _NOTHING
    text: msgspec.Raw = _NOTHING
    input_ids: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    system: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None


_facts = msgspec.json.Decoder(Facts)
_fields = msgspec.json.Decoder(Fields)


def read_facts(body: bytes) -> Facts | None:
    """The body's facts, or None if it is not JSON of the right shape."""
    return _read(body, _facts)


def read_fields(body: bytes) -> Fields | None:
    """The body's fields, or None if it is not JSON of the right shape."""
    return _read(body, _fields)


def _read(body: bytes, decoder: msgspec.json.Decoder[F]) -> F | None:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        return None
    except RecursionError:
        return None


def prompt_text(path: bytes, fields: Fields) -> bytes | None:
    """What comes first in a prompt, as one UTF-8 text: equal beginnings mean equal conversations.

    Messages are taken as the JSON they came in, without its closing bracket: the next turn's
    begins with the same bytes.
    """
    values = [getattr(fields, name) for name in _TEXT_FIELDS.get(path, ())]
    parts = [memoryview(value) for value in values if value]
    if not parts:
        return None
    if parts[-1][-1] == _CLOSING:
        parts[-1] = parts[-1][:-1]
    return b"\n".join(parts)


def longest_prompt(raw: msgspec.Raw) -> str | list[int] | None:
    """The prompt of a completion; the longest of a batch, whose blocks are worth most."""
    try:
        prompt = msgspec.json.decode(raw, type=str | list[Any])
        if isinstance(prompt, str):
            return prompt
        if prompt and isinstance(prompt[0], int):
            return msgspec.convert(prompt, list[int])
        if prompt and isinstance(prompt[0], str):
            return max(msgspec.convert(prompt, list[str]), key=len)
        if prompt:
            return max(msgspec.convert(prompt, list[list[int]]), key=len)
    except msgspec.MsgspecError:
        pass
    return None


def decode_messages(raw: msgspec.Raw) -> list[dict[str, Any]] | None:
    """Messages as objects, or None if they are not a list of those."""
    try:
        return msgspec.json.decode(raw, type=list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_tools(raw: msgspec.Raw) -> list[dict[str, Any]] | None:
    """Tools as objects; None if there are none."""
    return decode_messages(raw) if raw else None
