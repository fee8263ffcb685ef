"""Conversations put together from turns: the tokens of the whole, or none."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from expediter.errors import RequestError
from expediter.gateway.conversations import Conversations
from expediter.gateway.tokenizer import PromptTokenizer
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import pack_tokens, packed_prompt
from expediter.tokenizer import Tokenizer
from expediter.tokenizer.chat_template import ChatTemplate
from expediter.tokenizer.turns import find_turns

SPECIAL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "[INST]", "[/INST]"),
]
CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
    "You help.<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set c %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endset %}{% if loop.first %}<s>{% endif %}{{ c }}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    "{% endif %}"
)
LLAMA31 = (
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}"
    "<s><|start_header_id|>system<|end_header_id|>\n\nToday: {{ strftime_now('%d %b %Y') }}\n"
    "{{ s }}<|eot_id|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>"
    "\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN = (
    "{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% else %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM_IN_FIRST_USER = (
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}<s>"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
    "<|im_start|>{{ s if loop.first else '' }}{{ m.content }}<|im_end|>{% else %}"
    "<|im_start|>{{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}"
)
MISTRAL = (  # the answer follows its question without a border before it
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
LAST_KNOWS = (  # as newer Mistrals: the system's words go to the last question
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{% if loop.last and "
    "messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}{{ m.content }}"
    "<|im_end|>{% elif m.role == 'assistant' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}"
)
COUNTS = "{% for m in messages %}<|im_start|>{{ loop.index }} {{ m.content }}<|im_end|>{% endfor %}"
FORGETS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not "
    "loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)
BY_TURNS = {
    "chatml": CHATML,
    "llama 3": LLAMA3,
    "llama 3.1": LLAMA31,
    "qwen": QWEN,
    "system in first user": SYSTEM_IN_FIRST_USER,
    "mistral": MISTRAL,
}
AS_A_WHOLE = {
    "last knows": LAST_KNOWS,
    "counts": COUNTS,
    "forgets thoughts": FORGETS_THOUGHTS,
    "length": "{{ messages | length }}{{ messages[-1].content }}",
    "refuses": "{{ raise_exception('no') }}",
}


def tokenizer_of(template: str, *, day: list[int] | None = None) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the user asked and the assistant answered"] * 9, trainer)
    chat = ChatTemplate(template, now=lambda: datetime(2026, 1, (day or [1])[0]))
    return Tokenizer(backend, eos_token_ids=frozenset({3}), chat_template=chat)


@cache
def kept(name: str) -> Tokenizer:
    return tokenizer_of({**BY_TURNS, **AS_A_WHOLE}[name])


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


async def pack(conversations: Conversations, raw: bytes, *, opens: bool) -> bytes | None:
    """All tokens of what was read."""
    found = await conversations.read(msgspec.Raw(raw), opens=opens)
    if found is None:
        return None
    return packed_prompt(found.data, stem=found.stem, more=found.more).whole


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


async def test_turns_that_were_seen_are_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = tokenizer_of(CHATML)
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(tokenizer, executor=threads))
        first = b'[{"role":"user","content":"one"}, {"role":"user","content":"two"}]'
        packed = await pack(conversations, first, opens=True)
        assert packed is not None
        monkeypatch.setattr(Tokenizer, "render_chat", None)
        monkeypatch.setattr(Tokenizer, "encode", None)
        assert await pack(conversations, first, opens=True) == packed


async def test_a_template_that_tells_the_date_tells_todays() -> None:
    day = [1]
    tokenizer = tokenizer_of(LLAMA31, day=day)
    raw = b'[{"role":"user","content":"one"},{"role":"assistant","content":"two"}]'
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(tokenizer, executor=threads))
        for today in (1, 2):
            day[0] = today
            whole = pack_tokens(tokenizer.encode_chat(msgspec.json.decode(raw)))
            assert await pack(conversations, raw, opens=True) == whole


async def test_a_difference_the_probes_missed_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    secret = CHATML + "{% if messages[-1].content == 'xyzzy' %}!{% endif %}"
    tokenizer = tokenizer_of(secret)
    raw = b'[{"role":"user","content":"one"},{"role":"user","content":"xyzzy"}]'
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(tokenizer, executor=threads), checked_share=1)
        whole = pack_tokens(tokenizer.encode_chat(msgspec.json.decode(raw)))
        assert await pack(conversations, raw, opens=True) == whole
        assert "turn by turn" in caplog.text
        assert await pack(conversations, raw, opens=True) is None


@pytest.mark.parametrize("raw", [b"[]", b"{}", b"[1]", b'["a"]', b'[{"content":"x"}]', b"null"])
async def test_what_is_no_conversation_has_no_tokens(raw: bytes) -> None:
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(kept("chatml"), executor=threads))
        assert await pack(conversations, raw, opens=True) is None


async def test_a_new_conversation_that_many_ask_about_is_encoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_encoded = 0
    encode = PromptTokenizer.encode

    async def counted(self: PromptTokenizer, texts: Sequence[str]) -> list[bytes]:
        nonlocal num_encoded
        num_encoded += len(texts)
        return await encode(self, texts)

    monkeypatch.setattr(PromptTokenizer, "encode", counted)
    tokenizer = tokenizer_of(CHATML)
    asked = [{"role": "user", "content": "the user asked " * 1000}] * 2
    raw = json.dumps(asked).encode()
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(tokenizer, executor=threads))
        packed = await asyncio.gather(*(pack(conversations, raw, opens=True) for _ in range(9)))
    assert set(packed) == {pack_tokens(tokenizer.encode_chat(asked))}
    assert num_encoded == 1


def listed(*contents: str) -> msgspec.Raw:
    """A conversation whose turns say this."""
    asked = [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return msgspec.Raw(json.dumps(asked).encode())


async def test_a_short_end_that_nobody_was_sent_before_is_not_encoded_until_asked_for() -> None:
    tokenizer = kept("chatml")
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(tokenizer, executor=threads))
        await conversations.read(listed("the one", "two"), opens=True)
        found = await conversations.read(listed("the one", "two", "three"), opens=True)
        assert found is not None
        assert found.more is not None
        prompt = packed_prompt(
            found.data, stem=found.stem, more=found.more, num_more=found.num_more
        )
        index = PrefixIndex(clock=lambda: 0.0, block_size=2, assumed_capacity=1000)
        index.add_worker(WorkerId("w"))
        index.assume(WorkerId("w"), prompt, seconds=5.0)
        matched = index.match(prompt)[WorkerId("w")]
        assert prompt.more is not None
        whole = msgspec.json.decode(listed("the one", "two", "three"))
        assert prompt.whole == pack_tokens(tokenizer.encode_chat(whole))
        before = tokenizer.encode_chat(whole[:2], add_generation_prompt=False)
        assert matched == len(before) // 2 * 2
        assert prompt.num_tokens == len(prompt.whole) // 4
        assert prompt.keys(2) == packed_prompt(prompt.whole).keys(2)


@pytest.mark.parametrize("last", ["three", "the user " * 500])
async def test_what_comes_by_again_or_is_long_is_encoded(last: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(kept("chatml"), executor=threads))
        await conversations.read(listed("the one", "two"), opens=True)
        first = await conversations.read(listed("the one", "two", last), opens=True)
        again = await conversations.read(listed("the one", "two", last), opens=True)
        assert first is not None
        assert again is not None
        assert (first.more is None) == (len(last) > 100)
        assert again.more is None


@pytest.mark.parametrize("role", [["user"], {"user": 1}, 1, None, "nobody"])
async def test_a_role_of_another_kind_is_rendered_or_refused(role: object) -> None:
    with ThreadPoolExecutor(1) as threads:
        conversations = Conversations(PromptTokenizer(kept("chatml"), executor=threads))
        asked = [{"role": "user", "content": "one"}, {"role": role, "content": "two"}]
        await conversations.read(listed("one"), opens=True)
        for _ in range(2):
            found = await pack(conversations, json.dumps(asked).encode(), opens=True)
            assert found is None or role == "nobody"
