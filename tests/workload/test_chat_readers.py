"""Conversations with words: ShareGPT's files and OpenAI's JSON lines."""

import json
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promises import keep_promises

from expediter.errors import WorkloadError
from expediter.workload.chats import read_openai, read_sharegpt
from expediter.workload.json_array import json_items
from expediter.workload.turn import Turn

CONVERSATIONS = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "be kind"},
            {"from": "human", "value": "one two three"},
            {"from": "gpt", "value": "four five"},
            {"from": "human", "value": "six"},
            {"from": "gpt", "value": "seven\neight nine ten"},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "nobody asked"}]},
    {
        "id": "c",
        "conversations": [
            {"from": "system", "value": "be kind"},
            {"from": "human", "value": "one two three"},
            {"from": "gpt", "value": ""},
        ],
    },
]


def num_words(text: str) -> int:
    return len(text.split())


def sharegpt(path: Path) -> list[Turn]:
    starts = (float(second) for second in count())
    return list(read_sharegpt(path, starts=starts, count=num_words, rng=random.Random(1)))


def openai(path: Path) -> list[Turn]:
    starts = (float(second) for second in count())
    return list(read_openai(path, starts=starts, count=num_words))


@pytest.mark.parametrize("form", ["array", "pretty", "lines"])
def test_each_answer_is_a_turn_on_all_that_was_said_before(form: str, tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    match form:
        case "array":
            path.write_text(json.dumps(CONVERSATIONS))
        case "pretty":
            path.write_text(json.dumps(CONVERSATIONS, indent=2))
        case _:
            path.write_text("\n".join(map(json.dumps, CONVERSATIONS)) + "\n")
    turns = sharegpt(path)
    assert keep_promises(turns) == 2
    assert [turn.num_prompt_tokens for turn in turns] == [5, 8]
    assert [turn.num_output_tokens for turn in turns] == [2, 4]
    assert turns[1].prompt.before is turns[0].transcript
    texts = [segment.text for segment in turns[1].transcript.segments]
    assert texts[1:3] == ["one two three", "four five"]
    roles = [segment.role for segment in turns[1].transcript.segments]
    assert roles == ["system", "user", "assistant", "user", "assistant"]


def test_no_more_conversations_are_read_than_start(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(CONVERSATIONS[:1]) + "garbage after what is needed")
    turns = read_sharegpt(path, starts=[2.5], count=num_words, rng=random.Random(1))
    assert [turn.arrival_time for turn in turns] == [2.5, 2.5]


OPENAI: list[dict[str, Any]] = [
    {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "be kind"},
                {"role": "user", "content": [{"type": "text", "text": "one two"}]},
            ],
            "max_completion_tokens": 9,
        },
    },
    {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "one two"},
            {"role": "assistant", "content": "three four five"},
        ]
    },
    {"model": "m", "prompt": "one two three", "max_tokens": 4},
    {"messages": [{"role": "user", "content": "no limit"}], "tools": [{"name": "look up"}]},
    {
        "messages": [
            {"role": "user", "content": "find"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]},
            {"role": "tool", "content": "found it"},
        ],
        "max_tokens": 3,
    },
]


def test_openai_lines_are_batches_bodies_or_conversations(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, OPENAI)))
    turns = openai(path)
    assert keep_promises(turns) == 5
    assert [turn.num_prompt_tokens for turn in turns] == [4, 4, 3, 5, 5]
    assert [turn.num_output_tokens for turn in turns] == [9, 3, 4, 256, 3]
    assert turns[0].prompt.name == turns[1].prompt.name
    assert turns[1].transcript.segment.text == "three four five"
    assert turns[0].transcript.segment.text is None
    assert [segment.role for segment in turns[4].prompt.segments] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"messages": [{"role": "pirate", "content": "arr"}]}', "nobody is called 'pirate'"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "type 'image_url'",
        ),
        ('{"messages": []}', "neither messages nor a prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "$.max_tokens"),
        ('{"prompt": 7}', "$.prompt"),
        ("{", "truncated"),
    ],
)
def test_a_wrong_line_is_named(row: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "fine"}\n' + row)
    with pytest.raises(WorkloadError) as error:
        openai(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('[\n{"conversations": []},\n{"conversations": 3}]', 3, "$.conversations"),
        ('[\n{"conversations": []},\n{"conversations" []}]', 3, "':' delimiter"),
        ('[\n{"conversations": []},\n', 3, "the array does not end"),
        ('[{"conversations": [{"from": "human", "value": "cut', 1, "Unterminated string"),
        ('{"conversations": [{"from": "me", "value": "a"}]}', 1, "nobody is called 'me'"),
    ],
)
def test_a_wrong_conversation_is_named(text: str, line: int, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(text)
    with pytest.raises(WorkloadError) as error:
        sharegpt(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert problem in str(error.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_bytes(b'[{"conversations": []}, {"id": "\xff"}]')
    with pytest.raises(WorkloadError, match=r"sharegpt.json:1: .*utf-8"):
        sharegpt(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ITEMS = st.lists(st.dictionaries(st.text(), VALUES), max_size=5)


@settings(max_examples=40, deadline=None)
@given(ITEMS, st.sampled_from([None, 1]), st.booleans())
def test_items_come_whole_wherever_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory,
    items: list[Any],
    indent: int | None,
    is_ascii: bool,
) -> None:
    path = tmp_path_factory.mktemp("items") / "items.json"
    path.write_text(
        json.dumps(items, indent=indent, ensure_ascii=is_ascii), "utf-8", "surrogatepass"
    )
    assert [item for _, item in json_items(path, chunk_size=1)] == items
