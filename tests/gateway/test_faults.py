"""Workers that die, hang or vanish: what the client sees."""

import asyncio
import json
from collections import Counter

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
    client_of,
    gateway_before,
    hang_up,
    post,
    until,
)

EVENT = b'data: {"n": 1}\n\n'


async def silence(_: Received, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001
    await asyncio.sleep(60)


def error_of(body: bytes) -> dict[str, object]:
    error: dict[str, object] = json.loads(body)["error"]
    return error


async def test_a_worker_that_dies_before_its_answer_is_replaced_by_another() -> None:
    async with (
        FakeWorker(hang_up(), name="a") as dead,
        FakeWorker(always(JSON_OK), name="b") as ok,
        gateway_before(dead, ok) as gateway,
    ):
        answers = [await ask(gateway, post(b'{"prompt": "%d"}' % i)) for i in range(6)]
        assert [a.status for a in answers] == [200] * 6
        assert {a.headers["x-expediter-worker"] for a in answers} == {"b"}
        assert gateway.dispatcher.log.num_retries == len(dead.request_ids) > 0


async def test_a_worker_that_dies_between_head_and_body_is_replaced_too() -> None:
    async with (
        FakeWorker(hang_up(SSE_HEAD), name="a") as dead,
        FakeWorker(always(JSON_OK), name="b") as ok,
        gateway_before(dead, ok) as gateway,
    ):
        answers = [await ask(gateway, post(b'{"prompt": "%d"}' % i)) for i in range(4)]
        assert [a.body for a in answers] == [b"{}"] * 4


async def test_when_every_worker_dies_each_was_tried_once() -> None:
    async with (
        FakeWorker(hang_up(), name="a") as one,
        FakeWorker(hang_up(), name="b") as two,
        gateway_before(one, two) as gateway,
    ):
        answer = await ask(gateway, post())
        assert answer.status == 502
        assert error_of(answer.body)["type"] == "worker_lost"
        assert [d.worker_id for d in gateway.dispatcher.log.recent] == ["a", "b"]


async def test_a_stream_whose_worker_dies_ends_with_an_error_event_and_no_done() -> None:
    async with (
        FakeWorker(hang_up(SSE_HEAD + chunk(EVENT) * 3)) as worker,
        FakeWorker(always(JSON_OK), name="other") as other,
        gateway_before(worker, other) as gateway,
    ):
        answers = [await ask(gateway, post(b'{"prompt":"%d"}' % i)) for i in range(2)]
        broken = next(a for a in answers if a.headers["x-expediter-worker"] == "w")
        assert broken.is_complete
        assert broken.body.startswith(EVENT * 3 + b"data: {")
        assert b"[DONE]" not in broken.body
        last = broken.body.removeprefix(EVENT * 3).removeprefix(b"data: ")
        assert error_of(last)["type"] == "worker_lost"
        assert len(worker.received) == len(other.received) == 1


async def test_a_stream_that_ended_with_an_error_event_leaves_its_connection_usable() -> None:
    async with (
        FakeWorker(hang_up(SSE_HEAD + chunk(EVENT))) as dying,
        FakeWorker(always(JSON_OK), name="other") as other,
        gateway_before(dying, other) as gateway,
        client_of(gateway) as client,
    ):
        for number in range(4):
            client.send(post(b'{"prompt":"%d"}' % number))
            assert (await client.answer()).is_complete
        assert {d.worker_id for d in gateway.dispatcher.log.recent} == {"w", "other"}


async def test_a_stream_cut_within_a_chunk_is_left_incomplete() -> None:
    async with (
        FakeWorker(hang_up(SSE_HEAD + chunk(EVENT) + chunk(EVENT)[:-5])) as worker,
        gateway_before(worker) as gateway,
    ):
        answer = await ask(gateway, post())
        assert not answer.is_complete


@pytest.mark.parametrize(
    "partial",
    [
        OK + b"content-length: 10\r\n\r\nhello",
        OK + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",
    ],
)
async def test_an_answer_that_is_no_stream_is_left_incomplete(partial: bytes) -> None:
    async with (
        FakeWorker(hang_up(partial)) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(post())
        answer = await client.answer()
        assert answer.status == 200
        assert not answer.is_complete
        assert await client.is_closed()


async def test_a_cut_answer_to_http_1_0_ends_with_a_reset() -> None:
    partial = OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n"
    async with (
        FakeWorker(hang_up(partial)) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(post(version="1.0"))
        assert not (await client.answer()).is_complete


async def test_an_answer_that_is_not_http_is_a_lost_worker() -> None:
    async with (
        FakeWorker(always(b"SSH-2.0-OpenSSH\r\n\r\n")) as worker,
        gateway_before(worker) as gateway,
    ):
        answer = await ask(gateway, post())
        assert (answer.status, error_of(answer.body)["type"]) == (502, "worker_lost")


async def test_without_a_worker_the_answer_is_503_as_openai_shapes_it() -> None:
    async with gateway_before() as gateway:
        answer = await ask(gateway, post())
        assert answer.status == 503
        assert error_of(answer.body)["type"] == "service_unavailable"
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["retry-after"] == "1"


async def test_a_connection_the_worker_closed_is_replaced_without_anyone_noticing() -> None:
    async def answer_once(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(JSON_OK)
        worker.script = hang_up_once

    async def hang_up_once(_: Received, writer: asyncio.StreamWriter) -> None:
        worker.script = always(JSON_OK)
        writer.transport.abort()

    async with (
        FakeWorker(answer_once) as worker,
        gateway_before(worker, health_interval_seconds=30.0) as gateway,
    ):
        assert (await ask(gateway, post())).status == 200
        assert (await ask(gateway, post())).status == 200
        assert len(worker.received) == 3  # the second was sent twice
        assert gateway.dispatcher.log.num_retries == 0


async def test_no_request_is_sent_more_than_once_again() -> None:
    async with FakeWorker(hang_up()) as worker, gateway_before(worker) as gateway:
        for _ in range(3):
            assert (await ask(gateway, post())).status in (502, 503)
        times = Counter(r.values("x-request-id")[0] for r in worker.received)
        assert max(times.values()) <= 2  # once on a pooled connection, once on a new one


async def test_a_silent_worker_times_out_before_the_first_byte() -> None:
    async with (
        FakeWorker(silence) as worker,
        FakeWorker(always(JSON_OK), name="v") as other,
        gateway_before(worker, other, first_byte_seconds=0.2) as gateway,
    ):
        answers = [await ask(gateway, post(b'{"prompt":"%d"}' % i)) for i in range(2)]
        assert sorted(a.status for a in answers) == [200, 504]
        await until(lambda: worker.num_hung_up == 1)


async def test_time_outs_count_silence_and_not_the_length_of_a_stream() -> None:
    async def slow(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for _i in range(12):
            writer.write(chunk(EVENT))
            await asyncio.sleep(0.05)
        await silence(_, writer)

    async with FakeWorker(slow) as worker, gateway_before(worker, idle_seconds=0.4) as gateway:
        answer = await ask(gateway, post())
        assert answer.body.startswith(EVENT * 12 + b"data: {")
        last = answer.body.removeprefix(EVENT * 12).removeprefix(b"data: ")
        assert error_of(last)["type"] == "timeout_error"


async def test_a_worker_that_stops_is_avoided_and_one_that_returns_is_used() -> None:
    async with FakeWorker(always(JSON_OK), name="b") as other:
        worker = FakeWorker(always(JSON_OK), name="a")
        await worker.__aenter__()
        async with gateway_before(worker, other) as gateway:
            await worker.stop()
            for i in range(4):
                answer = await ask(gateway, post(b'{"prompt":"%d"}' % i))
                assert answer.headers["x-expediter-worker"] == "b"
            assert [m.worker_id for m in gateway.membership.ready()] == ["b"]
            async with FakeWorker(always(JSON_OK), name="a", port=worker.port) as again:
                await until(lambda: len(gateway.membership.ready()) == 2)
                for i in range(4):
                    await ask(gateway, post(b'{"prompt":"x%d"}' % i))
                assert again.received
