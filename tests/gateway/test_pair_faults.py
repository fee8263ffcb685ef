"""Whatever fails between two workers, the client is answered or told, and nothing is left."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fake_worker import (
    SSE_HEAD,
    FakeWorker,
    Received,
    Script,
    ask,
    chunk,
    client_of,
    hang_up,
    post,
    until,
)
from pair_workers import (
    BODY,
    BROKEN,
    REFUSED,
    STREAMED,
    TOKENS,
    DecodeWorker,
    PrefillWorker,
    answer,
    nothing_is_left,
    pools,
    says,
    silent,
    stream,
    vllm_prefill,
)

from expediter.config import DisaggregationConfig
from expediter.gateway.gateway import Gateway


@asynccontextmanager
async def pair(
    prefill: Script, decode: Script, **settings: object
) -> AsyncIterator[tuple[FakeWorker, FakeWorker, Gateway]]:
    """vLLM's dialect. In the end no work may be left at anybody."""
    async with (
        PrefillWorker(prefill, name="p") as p,
        DecodeWorker(decode, name="d") as d,
        pools(p, d, **settings) as gateway,
    ):
        yield p, d, gateway
        await nothing_is_left(gateway)


@pytest.mark.parametrize("prefill", [says(BROKEN), hang_up(), hang_up(b"HTTP/1.1 200 OK\r\n")])
async def test_when_prefill_fails_the_decode_worker_gets_the_request_as_it_came(prefill) -> None:
    async with pair(prefill, stream()) as (p, d, gateway):
        got = await ask(gateway, post(BODY))
        assert (got.status, got.body) == (200, STREAMED)
        assert got.headers["x-expediter-fallback"] == "prefill-failed"
        assert ([r.body for r in d.received], len(p.request_ids)) == ([BODY], 1)
        assert gateway.dispatcher.log.num_fallbacks == {"prefill-failed": 1}


async def test_a_prefill_worker_that_is_not_there_leaves_the_decode_worker_to_do_both() -> None:
    async with pair(vllm_prefill(), stream()) as (p, d, gateway):
        await p.stop()
        for reason in ("prefill-failed", "no-prefill-worker"):
            got = await ask(gateway, post(BODY))
            assert (got.body, got.headers["x-expediter-fallback"]) == (STREAMED, reason)
        assert [r.body for r in d.received] == [BODY, BODY]


async def test_a_decode_worker_that_is_not_there_leaves_the_prefill_worker_to_do_both() -> None:
    async with pair(stream(), stream()) as (p, d, gateway):
        await d.stop()
        await until(lambda: len(gateway.membership.ready()) == 1)
        got = await ask(gateway, post(BODY))
        assert (got.body, got.headers["x-expediter-fallback"]) == (STREAMED, "no-decode-worker")
        assert p.received[0].body == BODY


async def test_a_prefill_worker_s_refusal_is_the_client_s_answer() -> None:
    async with pair(says(REFUSED), stream()) as (_, d, gateway):
        got = await ask(gateway, post(BODY))
        assert (got.status, json.loads(got.body)) == (400, {"error": {"message": "too long"}})
        assert d.received == []


async def test_a_decode_worker_that_cannot_fetch_computes_the_prompt_itself() -> None:
    async def decode(request: Received, writer: asyncio.StreamWriter) -> None:
        if b"kv_transfer_params" in request.body:
            writer.write(BROKEN)
        else:
            await stream()(request, writer)

    async with pair(vllm_prefill(), decode) as (_, d, gateway):
        got = await ask(gateway, post(BODY))
        assert (got.status, got.body) == (200, STREAMED)
        assert [b"kv_transfer_params" in r.body for r in d.received] == [True, False]
        assert got.headers["x-expediter-fallback"] == "fetch-failed"


async def test_blocks_whose_lease_is_over_are_not_used() -> None:
    async def decode(request: Received, writer: asyncio.StreamWriter) -> None:
        if b"kv_transfer_params" in request.body:
            await asyncio.sleep(60)
        await stream()(request, writer)

    short = DisaggregationConfig(split="always", min_uncached_tokens=0, lease_seconds=0.05)
    async with pair(vllm_prefill(), decode, disaggregation=short) as (_, d, gateway):
        got = await ask(gateway, post(BODY))
        assert (got.status, got.body) == (200, STREAMED)
        assert got.headers["x-expediter-fallback"] == "lease-over"
        await until(lambda: d.num_hung_up == 1)


async def test_an_answer_in_one_piece_may_take_longer_than_a_lease() -> None:
    async def decode(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(answer({"choices": []}))

    short = DisaggregationConfig(split="always", min_uncached_tokens=0, lease_seconds=0.05)
    async with pair(vllm_prefill(), decode, disaggregation=short) as (_, d, gateway):
        got = await ask(gateway, post(json.dumps({"prompt": "a b c d"}).encode()))
        assert (got.status, len(d.received)) == (200, 1)
        assert "x-expediter-fallback" not in got.headers


async def test_a_decode_worker_that_dies_before_its_answer_is_replaced_by_another() -> None:
    async with (
        PrefillWorker(vllm_prefill(), name="p") as p,
        DecodeWorker(hang_up(), name="d") as d,
        DecodeWorker(stream(), name="e") as e,
        pools(p, d, e) as gateway,
    ):
        for _ in range(2):
            got = await ask(gateway, post(BODY))
            assert (got.status, got.body) == (200, STREAMED)
            assert got.headers["x-expediter-worker"] == "e"
        assert d.received
        # Blocks that one worker may have fetched are not fetched again: they are computed anew.
        assert len(p.received) == len(d.request_ids) + len(e.request_ids)
        await nothing_is_left(gateway)


async def test_a_decode_worker_that_dies_within_a_stream_is_told_to_the_client() -> None:
    async with pair(vllm_prefill(), hang_up(SSE_HEAD + chunk(TOKENS[0]))) as (_, __, gateway):
        got = await ask(gateway, post(BODY))
        assert got.body.startswith(TOKENS[0])
        assert b"worker_lost" in got.body


@pytest.mark.parametrize("stage", ["prefill", "decode", "stream"])
async def test_a_client_that_leaves_ends_the_leg_that_runs(stage: str) -> None:
    async def slow(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(TOKENS[0]))
        await asyncio.sleep(60)

    prefill = silent if stage == "prefill" else vllm_prefill()
    async with pair(prefill, slow if stage == "stream" else silent) as (p, d, gateway):
        busy = p if stage == "prefill" else d
        async with client_of(gateway) as client:
            client.send(post(BODY))
            await until(lambda: bool(busy.received))
            if stage == "stream":
                await client.answer(to_head=True)
        await until(lambda: busy.num_hung_up == 1)
        assert bool(d.received) == (stage != "prefill")
