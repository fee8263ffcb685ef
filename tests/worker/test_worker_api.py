"""The worker's API as the OpenAI client and plain HTTP see it."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from hash_engine import BLOCK_SIZE, HashModel
from live_server import HELLO, MODEL, RENDERED, Live, events_of, live_server


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with live_server() as running:
        yield running


async def test_a_completion(live: Live) -> None:
    answer = await live.openai.completions.create(model=MODEL, prompt="Hello", temperature=0)
    [choice] = answer.choices
    assert choice.text.encode() == live.model.expected(b"Hello", 16)
    assert choice.finish_reason == "length"
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert answer.id.startswith("cmpl-")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 16)
    assert answer.usage.total_tokens == 21


async def test_a_chat(live: Live) -> None:
    answer = await live.openai.chat.completions.create(
        model=MODEL, messages=HELLO, max_completion_tokens=9, temperature=0
    )
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content is not None
    assert choice.message.content.encode() == live.model.expected(RENDERED, 9)
    assert choice.finish_reason == "length"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")


async def test_a_chat_goes_on_to_the_end_of_the_context() -> None:
    async with live_server(max_model_len=100) as live:
        answer = await live.openai.chat.completions.create(model=MODEL, messages=HELLO)
        assert answer.usage is not None
        assert answer.usage.total_tokens == 100


async def test_or_to_the_end_of_the_memory() -> None:
    """The last token needs no slot."""
    async with live_server(num_blocks=20) as live:
        answer = await live.openai.chat.completions.create(model=MODEL, messages=HELLO)
        assert answer.usage is not None
        assert answer.usage.total_tokens == 20 * BLOCK_SIZE + 1


async def test_a_streamed_chat_says_the_same_as_a_whole_one(live: Live) -> None:
    stream = await live.openai.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=9,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    first, *middle, last, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in (first, *middle, last))
    assert text.encode() == live.model.expected(RENDERED, 9)
    assert last.choices[0].finish_reason == "length"
    assert all(c.choices[0].finish_reason is None for c in (first, *middle))
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 9
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


async def test_a_stream_ends_with_done_and_nothing_else(live: Live) -> None:
    body = {"prompt": "x", "stream": True, "max_tokens": 3}
    response = await live.http.post("/v1/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    assert len(chunks) == 3
    assert set(chunks[0]) == {"id", "object", "created", "model", "choices"}
    assert set(chunks[0]["choices"][0]) == {
        *("index", "text", "logprobs", "finish_reason", "stop_reason")
    }


async def test_usage_on_every_chunk_when_asked(live: Live) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "x", "stream": True, "max_tokens": 3, "stream_options": options}
    response = await live.http.post("/v1/completions", json=body)
    *chunks, _ = events_of(response.text)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


async def test_cached_tokens_are_told(live: Live) -> None:
    prompt = "a prompt of more than a few blocks"
    first = await live.complete(prompt)
    second = await live.complete(prompt)
    full = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": full}
    assert first["choices"] == second["choices"]


async def test_a_salt_separates_caches(live: Live) -> None:
    prompt = "a prompt of more than a few blocks"
    await live.complete(prompt, cache_salt="mine")
    other = await live.complete(prompt, cache_salt="yours")
    same = await live.complete(prompt, cache_salt="mine")
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert same["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    "prompt", ["text", ["one", "two"], list(b"ids"), [list(b"ids"), list(b"more")]]
)
async def test_every_form_of_prompt(live: Live, prompt: object) -> None:
    answer = await live.complete(prompt, max_tokens=5)
    several = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    texts = [one.encode() if isinstance(one, str) else bytes(one) for one in several]
    said = [choice["text"].encode() for choice in answer["choices"]]
    assert said == [live.model.expected(text, 5) for text in texts]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, texts))
    assert answer["usage"]["completion_tokens"] == 5 * len(texts)


async def test_n_choices_share_one_prefill(live: Live) -> None:
    """Only what does not fill a block is computed for each."""
    prompt = bytes(random.Random(1).choices(b"abc", k=202)).decode()
    answer = await live.complete(prompt, n=8, seed=1, temperature=1, max_tokens=1)
    assert live.model.num_computed_tokens == 202 + 7 * (202 % BLOCK_SIZE)
    assert answer["usage"]["prompt_tokens"] == 202
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_each_choice_has_a_seed_of_its_own(live: Live) -> None:
    answer = await live.complete("Hello", n=3, seed=7, temperature=1)
    said = [choice["text"].encode() for choice in answer["choices"]]
    assert said == [live.model.expected(b"Hello", 16, seed=7 + i) for i in range(3)]


async def test_streamed_choices_carry_their_indices(live: Live) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "seed": 3, "stream": True, "max_tokens": 6}
    response = await live.http.post("/v1/completions", json=body)
    texts = dict.fromkeys(range(4), "")
    for chunk in events_of(response.text)[:-1]:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    expected = [live.model.expected(p, 6, seed=3 + i) for p in (b"one", b"two") for i in range(2)]
    assert [text.encode() for text in texts.values()] == expected


async def test_characters_are_never_cut_in_a_stream() -> None:
    text = "naïve café: 漢字 and 👩‍🚀"
    async with live_server(HashModel(script=text.encode())) as live:
        body = {"prompt": "x", "stream": True, "max_tokens": 100}
        response = await live.http.post("/v1/completions", json=body)
        pieces = [chunk["choices"][0]["text"] for chunk in events_of(response.text)[:-1]]
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
        last = events_of(response.text)[-2]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", None)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_stop_string_over_chunk_borders_ends_the_answer(is_streamed: bool) -> None:
    async with live_server(HashModel(script=b"one STO two STOP three")) as live:
        body = {"prompt": "x", "stop": ["STOP", "never"], "max_tokens": 400}
        response = await live.http.post("/v1/completions", json={**body, "stream": is_streamed})
        if is_streamed:
            choices = [e["choices"][0] for e in events_of(response.text)[:-1]]
        else:
            choices = response.json()["choices"]
        assert "".join(choice["text"] for choice in choices) == "one STO two "
        assert choices[-1]["finish_reason"] == "stop"
        assert choices[-1]["stop_reason"] == "STOP"
        await live.until_idle()
        assert len(live.model.steps) < 30


async def test_stop_options() -> None:
    async with live_server(HashModel(script=b"one two three")) as live:
        shown = await live.complete("x", stop="two", include_stop_str_in_output=True)
        assert shown["choices"][0]["text"] == "one two"
        by_token = await live.complete("x", stop_token_ids=[ord("t")])
        assert by_token["choices"][0]["text"] == "one "
        assert by_token["choices"][0]["stop_reason"] == ord("t")
        later = await live.complete("x", stop=["t"], min_tokens=6)
        assert later["choices"][0]["text"] == "one two "
        endless = await live.complete("x", ignore_eos=True, max_tokens=16)
        assert endless["choices"][0]["finish_reason"] == "length"


async def test_echo_repeats_the_prompt(live: Live) -> None:
    for prompt in ("Hello", list(b"Hello")):
        answer = await live.complete(prompt, echo=True, max_tokens=3)
        assert answer["choices"][0]["text"].encode() == b"Hello" + live.model.expected(b"Hello", 3)


async def test_a_final_message_may_be_continued(live: Live) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Good morn"}]
    body = {"messages": messages, "continue_final_message": True, "temperature": 0}
    response = await live.http.post("/v1/chat/completions", json={**body, "max_tokens": 4})
    prompt = b"[system]Be brief.\n[user]Hello\n[assistant]Good morn"
    said = response.json()["choices"][0]["message"]["content"]
    assert said.encode() == live.model.expected(prompt, 4)


async def test_tools_reach_the_template(live: Live) -> None:
    tools = [{"type": "function", "function": {"name": "clock"}}]
    body = {"messages": HELLO, "tools": tools}
    tokens = (await live.http.post("/tokenize", json=body)).json()["tokens"]
    assert b'{"type": "function", "function": {"name": "clock"}}' in bytes(tokens)


async def test_request_ids_are_honoured_and_may_repeat(live: Live) -> None:
    """The header's name goes before the body's."""

    async def ask(headers: dict[str, str]) -> tuple[str, str]:
        body = {"prompt": "x", "max_tokens": 8, "request_id": "body"}
        response = await live.http.post("/v1/completions", json=body, headers=headers)
        return response.headers["x-request-id"], response.json()["id"]

    header = {"X-Request-Id": "header"}
    answers = await asyncio.gather(ask(header), ask(header), ask({}))
    assert answers == [("header", "cmpl-header")] * 2 + [("body", "cmpl-body")]


async def test_long_prompts_are_answered_like_short_ones() -> None:
    """They are tokenised in another thread."""
    prompt = "long " * 4000
    async with live_server(num_blocks=6000, max_model_len=30_000, max_batched_tokens=4096) as live:
        answer = await live.complete(prompt, max_tokens=4)
        said = answer["choices"][0]["text"].encode()
        assert said == live.model.expected(prompt.encode(), 4)
        chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
        response = await live.http.post("/v1/chat/completions", json=chat)
        assert response.json()["usage"]["prompt_tokens"] == len(prompt) + len("[user]\n[assistant]")
