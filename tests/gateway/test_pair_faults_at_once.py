"""The same where both workers are asked at once: our own, and SGLang's."""

import asyncio
import json

import pytest
from fake_worker import SSE_HEAD, Received, Script, ask, chunk, client_of, hang_up, post, until
from pair_workers import (
    BODY,
    BROKEN,
    REFUSED,
    STREAMED,
    TOKENS,
    DecodeWorker,
    PrefillWorker,
    expediter_source,
    nothing_is_left,
    pools,
    says,
    sglang,
    silent,
    stream,
    transfer_id,
)


async def test_our_decode_worker_goes_on_when_the_prefill_worker_dies() -> None:
    async def decode(request: Received, writer: asyncio.StreamWriter) -> None:
        await until(lambda: bool(p.received))
        await asyncio.sleep(0.02)
        await stream()(request, writer)

    async with (
        expediter_source(PrefillWorker(hang_up(), name="p")) as p,
        expediter_source(DecodeWorker(decode, name="d")) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, post(BODY))
        assert (got.status, got.body) == (200, STREAMED)
        [decision] = gateway.reports.decisions()
        assert decision["prefill_error"] == "worker_lost"
        assert decision["fallback"] == "prefill-failed"
        await nothing_is_left(gateway)


async def test_when_our_decode_worker_dies_its_prefill_is_given_up_and_made_anew() -> None:
    async def dies(request: Received, writer: asyncio.StreamWriter) -> None:
        await until(lambda: transfer_id(request) in map(transfer_id, p.received))
        await hang_up()(request, writer)

    async with (
        expediter_source(PrefillWorker(silent, name="p")) as p,
        expediter_source(DecodeWorker(dies, name="d")) as d,
        expediter_source(DecodeWorker(stream(), name="e")) as e,
        pools(p, d, e) as gateway,
    ):
        while not d.received:
            assert (await ask(gateway, post(BODY))).body == STREAMED
        names = {transfer_id(request) for request in d.received + e.received}
        assert len(names) == len(d.request_ids) + len(e.request_ids)
        await until(lambda: p.num_hung_up == len(p.received))
        await nothing_is_left(gateway)


async def test_a_client_that_leaves_ends_both_of_our_workers_legs() -> None:
    async with (
        expediter_source(PrefillWorker(silent, name="p")) as p,
        expediter_source(DecodeWorker(silent, name="d")) as d,
        pools(p, d) as gateway,
    ):
        async with client_of(gateway) as client:
            client.send(post(BODY))
            await until(lambda: bool(p.received and d.received))
        await until(lambda: p.num_hung_up == d.num_hung_up == 1)
        await nothing_is_left(gateway)


@pytest.mark.parametrize("failure", [hang_up(), says(BROKEN)])
async def test_sglang_s_pair_is_given_up_and_made_anew_when_its_prefill_worker_fails(
    failure: Script,
) -> None:
    async def decode(request: Received, writer: asyncio.StreamWriter) -> None:
        room = json.loads(request.body)["bootstrap_room"]
        if any(json.loads(r.body)["bootstrap_room"] == room for r in p.received):
            await asyncio.sleep(60)
        await stream()(request, writer)

    async with (
        sglang(PrefillWorker(failure, name="p")) as p,
        sglang(PrefillWorker(stream(), name="q")) as q,
        sglang(DecodeWorker(decode, name="d")) as d,
        pools(p, d, q) as gateway,
    ):
        while not p.received:
            await ask(gateway, post(BODY))
        got = await ask(gateway, post(BODY))
        assert (got.status, got.body) == (200, STREAMED)
        rooms = [json.loads(r.body)["bootstrap_room"] for r in d.received]
        assert len(set(rooms)) == len(rooms)
        await nothing_is_left(gateway)


@pytest.mark.parametrize("failure", [BROKEN, REFUSED, b""])
async def test_what_becomes_of_sglang_s_prefill_worker_after_the_answer_is_nobody_s_concern(
    failure: bytes,
) -> None:
    async def prefill(request: Received, writer: asyncio.StreamWriter) -> None:
        await begun.wait()
        await hang_up(failure)(request, writer)

    async def decode(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(TOKENS[0]))
        await asyncio.sleep(0.02)
        begun.set()
        await asyncio.sleep(0.02)
        writer.write(chunk(STREAMED.removeprefix(TOKENS[0])) + b"0\r\n\r\n")

    begun = asyncio.Event()
    async with (
        sglang(PrefillWorker(prefill, name="p")) as p,
        sglang(DecodeWorker(decode, name="d")) as d,
        pools(p, d) as gateway,
        client_of(gateway) as client,
    ):
        for _ in range(2):
            begun.clear()
            client.send(post(BODY))
            got = await client.answer()
            assert (got.status, got.body, got.is_complete) == (200, STREAMED, True)
        await nothing_is_left(gateway)


async def test_sglang_s_prefill_worker_s_refusal_is_the_client_s_answer() -> None:
    async with (
        sglang(PrefillWorker(says(REFUSED), name="p")) as p,
        sglang(DecodeWorker(silent, name="d")) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, post(BODY))
        assert (got.status, json.loads(got.body)) == (400, {"error": {"message": "too long"}})
        await nothing_is_left(gateway)


async def test_sglang_s_workers_cannot_serve_without_each_other() -> None:
    async with (
        sglang(PrefillWorker(stream(), name="p")) as p,
        sglang(DecodeWorker(stream(), name="d")) as d,
        pools(p, d) as gateway,
    ):
        await p.stop()
        await until(lambda: len(gateway.membership.ready()) == 1)
        assert (await ask(gateway, post(BODY))).status == 503
        assert d.received == []
