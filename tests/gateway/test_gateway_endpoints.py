"""What the gateway says of itself, and that OpenAI's own client is at home with it."""

import asyncio
import json

import openai
import pytest
from fake_worker import (
    JSON_OK,
    OK,
    SSE_HEAD,
    FakeWorker,
    Received,
    always,
    ask,
    chunk,
    gateway_before,
    get,
    post,
    until,
)

from expediter.cluster.membership import Membership, WorkerStatus
from expediter.gateway.gateway import Gateway
from expediter.routing.marks import FINE_TOKENS

USAGE = b'"usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 32}}'


async def fetch(gateway: Gateway, path: str) -> object:
    answer = await ask(gateway, get(path))
    assert answer.status == 200
    return json.loads(answer.body)


async def test_alive_and_ready_are_different_questions() -> None:
    worker = FakeWorker(always(JSON_OK))
    await worker.__aenter__()
    async with gateway_before(worker) as gateway:
        assert (await ask(gateway, get("/ready"))).status == 200
        await worker.stop()
        await until(lambda: not gateway.membership.ready())
        answer = await ask(gateway, get("/ready"))
        assert (answer.status, json.loads(answer.body)["ready"]) == (503, False)
        assert (await ask(gateway, get("/health"))).status == 200


async def test_own_paths_are_only_read() -> None:
    async with gateway_before() as gateway:
        assert (await ask(gateway, post(path="/workers"))).status == 405


async def test_models_are_those_of_all_workers_each_once() -> None:
    async with gateway_before() as gateway:
        membership: Membership = gateway.membership
        assert await fetch(gateway, "/v1/models") == {"object": "list", "data": []}
        cards = {"a": [{"id": "m", "root": "/a"}, {"id": "n"}], "b": [{"id": "m", "root": "/b"}]}
        servers = [FakeWorker(always(JSON_OK), name=name) for name in cards]
        for server in servers:
            await server.__aenter__()
            member = membership.add(server.endpoint)
            await until(lambda member=member: member.status is WorkerStatus.UP)
            member.model_cards = {c["id"]: c for c in cards[server.name]}  # type: ignore[assignment]
        models = await fetch(gateway, "/v1/models")
        assert models["data"] == [{"id": "m", "root": "/a"}, {"id": "n"}]  # type: ignore[index]
        for server in servers:
            await server.stop()


async def test_decisions_say_why_and_what_became_of_them() -> None:
    body = b'{"x": 1, %b}' % USAGE
    raw = OK + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    async with (
        FakeWorker(always(raw), name="a") as a,
        FakeWorker(always(raw), name="b") as b,
        gateway_before(a, b) as gateway,
    ):
        prompt = json.dumps({"prompt": "once upon a time " * 20, "max_tokens": 5}).encode()
        for _ in range(2):
            await ask(gateway, post(prompt, headers="X-Request-Id: r\r\n"))
        decisions = await fetch(gateway, "/decisions?limit=1")
        assert len(decisions) == 1  # type: ignore[arg-type]
        newest = decisions[0]  # type: ignore[index]
        assert newest["request_id"] == "r"
        assert newest["reason"] == "longest-match"
        assert newest["matched_tokens"] == 64
        assert newest["cached_tokens"] == 32
        assert newest["scores"] == {"a": 64, "b": 0}
        assert newest["status"] == 200
        assert newest["ttft_seconds"] > 0
        assert (await ask(gateway, get("/decisions?limit=x"))).status == 400
        workers = await fetch(gateway, "/workers")
        assert [w["worker_id"] for w in workers] == ["a", "b"]  # type: ignore[index]
        assert workers[0]["num_assumed_blocks"] == FINE_TOKENS // 16  # type: ignore[index]
        assert workers[0]["num_requests"] == 0  # type: ignore[index]


async def test_metrics_tell_what_happened() -> None:
    body = b"{%b}" % USAGE
    raw = OK + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    async with FakeWorker(always(raw)) as worker, gateway_before(worker) as gateway:
        prompt = b'{"prompt": "%b"}' % (b"z" * 400)
        for _ in range(3):
            await ask(gateway, post(prompt))
        text = (await ask(gateway, get("/metrics"))).body.decode()
        for line in (
            'expediter_worker_up{worker="w"} 1.0',
            'expediter_requests_in_flight{worker="w"} 0.0',
            'expediter_decisions_total{reason="no-match"} 1.0',
            'expediter_decisions_total{reason="longest-match"} 2.0',
            'expediter_worker_requests_total{worker="w"} 3.0',
            'expediter_worker_predicted_cached_tokens_total{worker="w"} 128.0',
            'expediter_worker_actual_cached_tokens_total{worker="w"} 96.0',
            'expediter_time_to_first_token_seconds_count{class="none",model="none",worker="w"} 3.0',
            'expediter_index_blocks{source="assumed",worker="w"} 4.0',
            "expediter_retries_total 0.0",
        ):
            assert line in text.splitlines(), line


async def test_usage_in_the_last_event_of_a_stream_is_seen() -> None:
    async def stream(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b'data: {"choices": []}\n\n') * 20)
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(chunk(b"data: {%b}\n\n" % USAGE))
        await asyncio.sleep(0.01)
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with FakeWorker(stream) as worker, gateway_before(worker) as gateway:
        await ask(gateway, post(b'{"prompt": "x"}'))
        assert gateway.dispatcher.log.recent[-1].cached_tokens == 32


def completion_event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    event = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**event, "choices": [choice]}).encode() + b"\n\n"


async def test_openais_client_streams_and_sees_a_lost_worker_as_an_error() -> None:
    events = [completion_event("Hel"), completion_event("lo", "stop")]

    async def script(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(map(chunk, events)))
        if b"die" in request.body:
            await writer.drain()
            writer.close()
        else:
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with FakeWorker(script) as worker, gateway_before(worker) as gateway:
        url = f"http://127.0.0.1:{gateway.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:

            async def said(text: str) -> str:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": text}], stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            assert await said("hi") == "Hello"
            with pytest.raises(openai.APIError, match="before its answer was complete"):
                await said("die")
        assert worker.received[0].values("authorization") == ["Bearer k"]


async def test_a_conversation_without_a_tokenizer_stays_on_its_worker() -> None:
    workers = [FakeWorker(always(JSON_OK), name=name) for name in "abc"]
    for worker in workers:
        await worker.__aenter__()
    async with gateway_before(*workers) as gateway:
        messages = [{"role": "system", "content": "You are a patient teacher. " * 50}]
        homes = []
        for turn in range(6):
            messages.append({"role": "user", "content": f"Question {turn}: why? " * 8})
            body = json.dumps({"model": "m", "messages": messages}).encode()
            answer = await ask(gateway, post(body, path="/v1/chat/completions"))
            homes.append(answer.headers["x-expediter-worker"])
            messages.append({"role": "assistant", "content": f"Because {turn}. " * 8})
        assert len(set(homes)) == 1
        recent = gateway.dispatcher.log.recent
        for before, after in zip(recent, list(recent)[1:], strict=False):
            assert after.matched_tokens >= before.num_tokens - 2 * FINE_TOKENS
    for worker in workers:
        await worker.stop()
