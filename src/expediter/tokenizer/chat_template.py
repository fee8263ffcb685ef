"""Conversations to prompts, as the model's own Jinja template says.

The template comes with the model and the messages from the network, so it runs in Jinja's
immutable sandbox. What a template may use beyond Jinja is what Hugging Face's
`apply_chat_template` offers; messages are prepared as vLLM prepares them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from expediter.errors import ModelLoadError, RequestError, UnsupportedParameter

_DEFAULT = "default"
_TOOL_USE = "tool_use"
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class ChatTemplate:
    """One template, or several by name: "tool_use" takes conversations with tools.

    Raises ModelLoadError if one is not valid Jinja.
    """

    def __init__(
        self, sources: str | Mapping[str, str], *, now: Callable[[], datetime] = datetime.now
    ) -> None:
        self.sources = {_DEFAULT: sources} if isinstance(sources, str) else dict(sources)
        self.source = self.sources.get(_DEFAULT) or next(iter(self.sources.values()))
        environment = _environment(now)
        try:
            self._default = environment.from_string(self.source)
            self._tool_use = environment.from_string(self.sources.get(_TOOL_USE, self.source))
        except jinja2.TemplateError as error:
            raise ModelLoadError(f"the chat template is not valid: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        names: Mapping[str, Any],
    ) -> str:
        """The prompt; raises RequestError with what the template objects to."""
        template = self._tool_use if tools else self._default
        prepared = [_prepare(message, place) for place, message in enumerate(messages)]
        try:
            return template.render({**names, "messages": prepared, "tools": tools or None})
        except jinja2.TemplateError as error:
            raise RequestError(f"chat template: {error}", param="messages") from error
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            # A template that meets a message of a shape it was not written for.
            raise RequestError(f"chat template cannot render: {error}", param="messages") from error


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; a prompt just holds them."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _prepare(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A message whose content is one string and whose tool calls carry parsed arguments."""
    param = f"messages[{place}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{param} must be an object with a role", param=param)
    prepared = {**message, "content": _text_of(message.get("content"), f"{param}.content")}
    calls = prepared.pop("tool_calls", None)
    if calls:
        prepared["tool_calls"] = _prepare_tool_calls(calls, f"{param}.tool_calls")
    return prepared


def _text_of(content: object, param: str) -> str:
    """Text parts joined by line breaks, as vLLM joins them; no content is an empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{param} must be a string or a list of parts", param=param)
    return "\n".join(_part_text(part, f"{param}[{i}]") for i, part in enumerate(content))


def _part_text(part: object, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in _TEXT_PARTS:
        raise UnsupportedParameter(
            f"{param} is of type {kind!r}; allowed are {', '.join(_TEXT_PARTS)}", param=param
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise RequestError(f"{param} has no text", param=param)
    return text


def _prepare_tool_calls(calls: object, param: str) -> list[dict[str, Any]]:
    """Templates expect arguments as objects; OpenAI's clients send them as JSON text."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RequestError(f"{param} must be a list", param=param)
    prepared = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise RequestError(f"{param} must hold calls of functions", param=param)
        prepared.append({**call, "function": {**function, "arguments": _arguments(function)}})
    return prepared


def _arguments(function: Mapping[str, Any]) -> object:
    arguments = function.get("arguments") or {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return arguments  # it is history, and what the model wrote
