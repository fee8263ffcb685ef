"""Conversations put together from turns: the tokens of the whole, or none."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conversing import AS_A_WHOLE, BY_TURNS, kept, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.errors import RequestError
from expediter.gateway.conversations import Conversations
from expediter.gateway.tokenizer import PromptTokenizer
from expediter.routing.prompt import pack_tokens
from expediter.tokenizer import Tokenizer
from expediter.tokenizer.turns import find_turns


@pytest.mark.parametrize("name", BY_TURNS)
def test_templates_that_write_by_turns_are_found(name: str) -> None:
    assert find_turns(kept(name)) is not None


@pytest.mark.parametrize("name", AS_A_WHOLE)
def test_templates_that_look_around_are_found_too(name: str) -> None:
    assert find_turns(kept(name)) is None


CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "tool"}'}}]
contents = st.one_of(
    st.sampled_from(["", " hi ", "<|im_end|>", "<s>", "a </think> b", "[INST] x", "the user\n"]),
    st.text(max_size=10),
)
messages = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": contents},
        optional={"name": st.just("bob"), "tool_call_id": st.just("1")},
    ),
    st.just({"role": "assistant", "content": None, "tool_calls": CALLS}),
    st.fixed_dictionaries(
        {
            "role": st.just("user"),
            "content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": contents})),
        }
    ),
)
alternating = st.lists(contents, min_size=1, max_size=8).map(
    lambda texts: [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)
    ]
)


def pack_all(
    tokenizer: Tokenizer,
    asked: Sequence[tuple[list[dict[str, Any]], bool]],
    *,
    separators: tuple[str, str] = (", ", ": "),
    max_stem_bytes: int = 10**6,
) -> list[bytes | None]:
    async def packed() -> list[bytes | None]:
        with ThreadPoolExecutor(1) as threads:
            exact = PromptTokenizer(tokenizer, executor=threads)
            conversations = Conversations(exact, checked_share=10**9, max_stem_bytes=max_stem_bytes)
            return [
                await pack(
                    conversations, json.dumps(m, separators=separators).encode(), opens=opens
                )
                for m, opens in asked
            ]

    return asyncio.run(packed())


@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(sorted(BY_TURNS)),
    asked=st.one_of(st.lists(messages, min_size=1, max_size=8), alternating),
    opens=st.booleans(),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]),
    max_stem_bytes=st.sampled_from([0, 3000, 10**6]),
)
def test_tokens_are_those_of_the_whole(
    name: str,
    asked: list[dict[str, Any]],
    opens: bool,
    separators: tuple[str, str],
    max_stem_bytes: int,
) -> None:
    tokenizer = kept(name)
    try:
        whole = pack_tokens(tokenizer.encode_chat(asked, add_generation_prompt=opens))
    except RequestError:
        return  # the worker refuses it
    growing = [(asked[:n], False) for n in range(1, len(asked))]
    packed = pack_all(
        tokenizer,
        [*growing, (asked, opens), (asked, opens)],
        separators=separators,
        max_stem_bytes=max_stem_bytes,
    )
    assert packed[-1] in (whole, None)
    assert packed[-2] == packed[-1]


def test_a_conversation_is_put_together_from_what_was_seen() -> None:
    asked = [{"role": ("user", "assistant")[i % 2], "content": f"{i}"} for i in range(9)]
    tokenizer = kept("chatml")
    whole = pack_tokens(tokenizer.encode_chat(asked))
    [_, packed] = pack_all(tokenizer, [(asked[:-2], True), (asked, True)])
    assert packed == whole
