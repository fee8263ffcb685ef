"""What is remembered of conversations: not looked at again, never too much, and not too early."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from conversing import CHATML, LLAMA31, kept, pack, tokenizer_of

from expediter.gateway.conversations import Conversations
from expediter.gateway.tokenizer import PromptTokenizer
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import pack_tokens, packed_prompt
from expediter.tokenizer import Tokenizer


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
