"""The playground's way to the gateway: what goes along, what comes back, what stays here."""

import asyncio
import json

import pytest
from fake_worker import OK, SSE_HEAD, FakeWorker, Received, always, chunk, until
from paged import paged

from expediter.config import TenancyConfig, TenantConfig
from expediter.gateway.tenants import hash_key

TOKEN = "0123456789abcdef"
BEARER = {"authorization": f"Bearer {TOKEN}"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
EVENTS = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'


async def streams(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(EVENTS[:20]))
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.write(chunk(EVENTS[20:]) + b"0\r\n\r\n")


async def test_an_answer_comes_back_whole_with_where_it_was_made_and_why() -> None:
    async with FakeWorker(streams, name="a") as a, paged(a) as fleet:
        response = await fleet.client.post("/playground/chat", json=CHAT)
    assert response.content == EVENTS
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-expediter-worker"] == "a"
    assert response.headers["x-expediter-reason"] == "no-match"
    assert response.headers["x-expediter-matched-tokens"] == "0"
    [received] = a.received
    assert (received.method, received.target) == ("POST", "/v1/chat/completions")
    assert json.loads(received.body) == CHAT


async def test_the_admin_token_stays_here() -> None:
    async with FakeWorker(streams) as worker, paged(worker, token=TOKEN) as fleet:
        assert (await fleet.client.post("/playground/chat", json=CHAT)).status_code == 401
        response = await fleet.client.post("/playground/chat", json=CHAT, headers=BEARER)
        assert response.status_code == 200
        [received] = worker.received
    assert received.values("authorization") == []
    assert TOKEN not in str(received)


async def test_a_tenants_key_goes_along_and_without_one_the_gateway_refuses() -> None:
    tenant = TenantConfig(tenant_id="t", keys=(hash_key("tenant-key"),))
    async with (
        FakeWorker(streams) as worker,
        paged(worker, tenancy=TenancyConfig(tenants=(tenant,), secret="s" * 16)) as fleet,
    ):
        refused = await fleet.client.post("/playground/chat", json=CHAT)
        assert refused.status_code == 401
        assert "www-authenticate" not in refused.headers
        assert (await fleet.client.get("/playground/models")).status_code == 401
        key = {"x-api-key": "tenant-key"}
        assert (await fleet.client.get("/playground/models", headers=key)).status_code == 200
        response = await fleet.client.post("/playground/chat", json=CHAT, headers=key)
        assert response.content == EVENTS


async def test_a_page_that_leaves_gives_the_request_up() -> None:
    async def hangs(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENTS[:20]))
        await asyncio.Event().wait()

    async with FakeWorker(hangs) as worker, paged(worker) as fleet:
        async with fleet.client.stream("POST", "/playground/chat", json=CHAT) as response:
            assert await anext(response.aiter_bytes()) == EVENTS[:20]
        await until(lambda: worker.num_hung_up == 1)


async def test_a_long_answer_is_held_back_and_arrives_whole() -> None:
    piece = b"x" * 50_000

    async def floods(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for _ in range(300):
            writer.write(chunk(piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with (
        FakeWorker(floods) as worker,
        paged(worker) as fleet,
        fleet.client.stream("POST", "/playground/chat", json=CHAT) as response,
    ):
        await asyncio.sleep(0.2)
        assert len(await response.aread()) == 300 * len(piece)


async def test_the_gateways_refusal_is_the_pages() -> None:
    async with FakeWorker(always(OK + b"content-length: 0\r\n\r\n")) as worker, paged(worker) as f:
        body = {**CHAT, "kv_transfer_params": {}}
        response = await f.client.post("/playground/chat", json=body)
        assert response.status_code == 400
        assert "kv_transfer_params" in response.json()["error"]["message"]
        assert (await f.client.post("/playground/chat", content=b"x" * 2**21)).status_code == 413
        empty = await f.client.post("/playground/chat", json=CHAT)
        assert (empty.status_code, empty.content) == (200, b"")


async def test_a_worker_that_dies_within_an_answer_is_told_to_the_page() -> None:
    async def dies(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(EVENTS[:49]))
        await writer.drain()
        writer.close()

    async with FakeWorker(dies) as worker, paged(worker) as fleet:
        response = await fleet.client.post("/playground/chat", json=CHAT)
    assert b"worker_lost" in response.content


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null"])
async def test_pages_of_other_origins_may_not_chat(origin: str) -> None:
    async with FakeWorker(streams) as worker, paged(worker) as fleet:
        response = await fleet.client.post(
            "/playground/chat", json=CHAT, headers={"origin": origin}
        )
        assert response.status_code == 403
        assert worker.received == []
