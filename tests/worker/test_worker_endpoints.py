"""Log probabilities, token ids, and the endpoints that generate nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hash_engine import BLOCK_SIZE, EOS
from live_server import HELLO, MODEL, RENDERED, Live, events_of, live_server

from expediter.config import KVCacheConfig, WorkerConfig


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with live_server() as running:
        yield running


async def test_logprobs_of_completions(live: Live) -> None:
    answer = await live.openai.completions.create(
        model=MODEL, prompt="x", logprobs=2, max_tokens=3, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == list(answer.choices[0].text)
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs is not None
    assert [len(top) for top in logprobs.top_logprobs] == [3] * 3


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_logprobs_of_chats(live: Live, is_streamed: bool) -> None:
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    response = await live.http.post("/v1/chat/completions", json={**body, "stream": is_streamed})
    if is_streamed:
        choices = [event["choices"][0] for event in events_of(response.text)[1:-1]]
    else:
        choices = response.json()["choices"]
    content = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert len(content) == 3
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in content)
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_token_ids_are_returned_when_asked(live: Live, is_streamed: bool) -> None:
    body = {"prompt": "Hello", "return_token_ids": True, "max_tokens": 4, "stream": is_streamed}
    response = await live.http.post("/v1/completions", json={**body, "temperature": 0})
    if is_streamed:
        choices = [event["choices"][0] for event in events_of(response.text)[:-1]]
    else:
        choices = response.json()["choices"]
    assert choices[0]["prompt_token_ids"] == list(b"Hello")
    assert not any("prompt_token_ids" in choice for choice in choices[1:])
    ids = [token_id for choice in choices for token_id in choice["token_ids"]]
    assert bytes(ids) == live.model.expected(b"Hello", 4)


async def test_token_ids_of_chats(live: Live) -> None:
    body = {"messages": HELLO, "return_token_ids": True, "max_tokens": 2}
    whole = (await live.http.post("/v1/chat/completions", json=body)).json()
    assert bytes(whole["prompt_token_ids"]) == RENDERED
    assert len(whole["choices"][0]["token_ids"]) == 2
    streamed = await live.http.post("/v1/chat/completions", json={**body, "stream": True})
    first, *rest, _ = events_of(streamed.text)
    assert bytes(first["prompt_token_ids"]) == RENDERED
    assert [len(chunk["choices"][0]["token_ids"]) for chunk in rest] == [1, 1]


async def test_tokenize_and_detokenize_are_inverse(live: Live) -> None:
    text = "naïve <|end|>"
    body = {"prompt": text, "return_token_strs": True}
    answer = (await live.http.post("/tokenize", json=body)).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["tokens"][-1] == EOS
    assert answer["max_model_len"] == 512
    assert answer["token_strs"][-1] == "<|end|>"
    back = await live.http.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": text}
    chat = (await live.http.post("/tokenize", json={"messages": HELLO})).json()
    assert bytes(chat["tokens"]) == RENDERED
    assert chat["token_strs"] is None


async def test_the_served_model_is_listed(live: Live) -> None:
    [model] = (await live.openai.models.list()).data
    assert model.id == MODEL
    assert model.model_dump()["max_model_len"] == 512


async def test_the_cache_can_be_reset_unless_it_is_in_use(live: Live) -> None:
    prompt = "a prompt of more than a few blocks"
    await live.complete(prompt)
    assert (await live.http.post("/reset_prefix_cache")).json() == {"success": True}
    answer = await live.complete(prompt)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    live.model.may_run.clear()
    task = asyncio.create_task(live.complete(prompt))
    await live.until_steps(len(live.model.steps) + 1)
    assert (await live.http.post("/reset_prefix_cache")).json() == {"success": False}
    assert (await live.http.get("/load")).json() == {"server_load": 1}
    live.model.may_run.set()
    await task


async def test_metrics_have_vllms_names_and_count_tokens(live: Live) -> None:
    prompt = "a prompt of more than a few blocks"
    for _ in range(2):
        await live.complete(prompt, max_tokens=5)
    text = (await live.http.get("/metrics")).text
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    hits = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    expected = {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0,
        "prefix_cache_queries_total": 2 * len(prompt),
        "prefix_cache_hits_total": hits,
        "prompt_tokens_total": 2 * len(prompt),
        "generation_tokens_total": 10,
        "num_preemptions_total": 0,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 8,
        "e2e_request_latency_seconds_count": 2,
        "request_queue_time_seconds_count": 2,
    }
    for name, value in expected.items():
        assert float(found[f"vllm:{name}{labels}"]) == value, name
    source = f'{{engine="0",model_name="{MODEL}",source="local_cache_hit"}}'
    assert float(found[f"vllm:prompt_tokens_by_source_total{source}"]) == hits
    ended = f'{{engine="0",finished_reason="length",model_name="{MODEL}"}}'
    assert float(found[f"vllm:request_success_total{ended}"]) == 2
    [info] = [name for name in found if name.startswith("vllm:cache_config_info")]
    assert 'block_size="4"' in info
    assert 'num_gpu_blocks="256"' in info


async def test_a_server_without_publisher_has_no_event_sources(live: Live) -> None:
    assert (await live.http.get("/kv_event_sources")).json() == {}
    assert (await live.http.get("/version")).json()["version"]
    assert (await live.http.get("/health")).status_code == 200


async def test_a_body_over_the_limit_is_413() -> None:
    config = WorkerConfig(port=0, max_body_bytes=1000, kv_cache=KVCacheConfig(block_size=4))
    async with live_server(config=config) as live:
        error = await live.error(prompt="x" * 1000)
        assert error["code"] == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        response = await live.http.post("/v1/completions", content=chunks())
        assert response.status_code == 413
        await live.complete("still here")
