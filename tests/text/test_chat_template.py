"""Conversations as templates see them."""

from datetime import datetime
from typing import Any

import pytest

from expediter.errors import ModelLoadError, RequestError, UnsupportedParameter
from expediter.tokenizer.chat_template import ChatTemplate

FIRST_CONTENT = "{{ messages[0].content }}"


def render(source: str, *messages: Any, tools: Any = None, **names: Any) -> str:
    template = ChatTemplate(source, now=lambda: datetime(2024, 7, 26))
    return template.render(
        messages or [{"role": "user", "content": "hi"}], tools=tools, names=names
    )


def test_blocks_leave_no_blank_lines_behind() -> None:
    source = "  {% for m in messages %}\n{{ m.role }}: {{ m.content }}\n  {% endfor %}\nend"
    assert render(source) == "user: hi\nend"


def test_what_templates_may_use_is_there() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024"
    assert render("{{ {'é': '<a>'} | tojson }}") == '{"é": "<a>"}'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert render("{% for i in [1, 2, 3] %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}")
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"
    assert render("{{ eos_token }}{{ flag }}", eos_token="</s>", flag=True) == "</s>True"


def test_tools_reach_the_template_and_none_is_no_tools() -> None:
    source = "{% if tools is not none %}{{ tools[0].function.name }}{% else %}none{% endif %}"
    assert render(source, tools=[{"function": {"name": "f"}}]) == "f"
    assert render(source, tools=[]) == render(source) == "none"


def test_a_templates_objection_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"
    with pytest.raises(RequestError):
        render("{{ messages[0].content + 1 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.x }}",
    ],
)
def test_templates_cannot_change_or_leave_what_they_are_given(source: str) -> None:
    with pytest.raises(RequestError):
        render(source)


def test_a_template_that_is_not_jinja_is_a_load_error() -> None:
    with pytest.raises(ModelLoadError):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}], "a\nb\nc"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
def test_text_parts_become_one_text(content: Any, text: str) -> None:
    assert render(FIRST_CONTENT, {"role": "user", "content": content}) == text


def test_parts_that_are_not_text_are_refused_by_name() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}
    parts = [{"type": "text", "text": "a"}, image]
    with pytest.raises(UnsupportedParameter, match="image_url") as caught:
        render(FIRST_CONTENT, {"role": "user", "content": parts})
    assert caught.value.param == "messages[0].content[1]"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0]"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls"),
    ],
)
def test_malformed_messages_are_refused_with_their_place(message: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(FIRST_CONTENT, message)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [('{"x": 1}', "{'x': 1}"), ({"x": 1}, "{'x': 1}"), ("", "{}"), ("{x", "{x")],
)
def test_tool_call_arguments_reach_the_template_as_objects(arguments: Any, seen: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert render("{{ messages[0].tool_calls[0].function.arguments }}", message) == seen
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_an_empty_list_of_tool_calls_is_none_at_all() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": []}
    assert render("{{ 'tool_calls' in messages[0] }}", message) == "False"
