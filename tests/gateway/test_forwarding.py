"""What arrives at the worker is what the client sent, and what arrives at the client likewise."""

import asyncio
import json

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
    get,
    post,
    until,
)

STREAM = [b'data: {"n": 1}\n\n', b'data: {"n": 2}\n\n', b"data: [DONE]\n\n"]


async def test_a_body_is_forwarded_byte_for_byte() -> None:
    body = b'{ "prompt" :"h\\u0069", "unheard_of":[1e3,{"a":null}], "cache_salt": "s","x":1.50}\n'
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        answer = await ask(gateway, post(body))
        assert (answer.status, answer.body) == (200, b"{}")
        assert worker.received[0].body == body
        assert worker.received[0].target == "/v1/completions"


@pytest.mark.parametrize("body", [b"", b"not json", b"[1, 2]", b'{"prompt": {"a": 1}}', b"\xff"])
async def test_what_a_body_means_is_for_the_worker_to_say(body: bytes) -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        assert (await ask(gateway, post(body))).status == 200
        assert worker.received[0].body == body


async def test_headers_are_those_of_the_far_end_and_name_the_request() -> None:
    extra = (
        "Authorization: Bearer k\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n"
        "X-Request-Id: mine\r\nX-Forwarded-For: 9.9.9.9\r\nTraceparent: 00-ab\r\n"
    )
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        answer = await ask(gateway, post(b'{"prompt": "hi"}', headers=extra))
        received = worker.received[0]
        assert received.values("authorization") == ["Bearer k"]
        assert received.values("traceparent") == ["00-ab"]
        assert received.values("x-request-id") == ["mine"]
        assert received.values("x-forwarded-for") == ["9.9.9.9, 127.0.0.1"]
        assert received.values("x-forwarded-host") == ["test"]
        assert received.values("host") == [f"127.0.0.1:{worker.port}"]
        for dropped in ("connection", "x-hop", "te", "transfer-encoding"):
            assert received.values(dropped) == []
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["x-expediter-worker"] == "w"
        assert answer.headers["x-expediter-reason"] == "no-match"
        assert answer.headers["x-expediter-matched-tokens"] == "0"


async def test_a_request_without_an_id_gets_one() -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        answer = await ask(gateway, post())
        assert worker.received[0].values("x-request-id") == [answer.headers["x-request-id"]]


async def test_a_stream_arrives_chunk_by_chunk_as_it_was_sent() -> None:
    gate = asyncio.Event()

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for event in STREAM:
            writer.write(chunk(event))
            await gate.wait()
            gate.clear()
        writer.write(b"0\r\n\r\n")

    async with (
        FakeWorker(script) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(post(b'{"stream": true}'))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        for event in STREAM:
            # Each arrives although the next one has not been sent.
            assert await client.reader.readexactly(len(chunk(event))) == chunk(event)
            gate.set()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"
        client.send(post())  # and the connection goes on
        await until(lambda: len(worker.received) == 2)


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK + b"content-length: 5\r\n\r\nhello", b"hello"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
        (OK + b"connection: close\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK + b"content-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
    ],
)
async def test_every_framing_of_an_answer_is_understood(raw: bytes, body: bytes) -> None:
    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        if b"length" not in raw and b"chunked" not in raw and b"204" not in raw:
            await writer.drain()
            writer.close()

    async with (
        FakeWorker(script) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        for _ in range(3):
            client.send(post())
            answer = await client.answer()
            assert (answer.body, answer.is_complete) == (body, True)
            assert answer.status == (204 if b"204" in raw else 200)


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    raw = OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    async with (
        FakeWorker(always(raw)) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(post(version="1.0"))
        answer = await client.answer()
        assert answer.body == b"hello"
        assert "transfer-encoding" not in answer.headers
        assert await client.is_closed()


async def test_a_head_request_has_no_body_but_its_length() -> None:
    raw = OK + b"content-length: 5\r\n\r\n"
    async with (
        FakeWorker(always(raw)) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        for path, length in (("/v1/files", "5"), ("/health", "15")):
            client.send(get(path, method="HEAD"))
            answer = await client.answer(to_head=True)
            assert answer.headers["content-length"] == length
        assert worker.received[0].method == "HEAD"


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def script(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.001 * (10 - int(request.body)))
        writer.write(OK + b"content-length: %d\r\n\r\n%b" % (len(request.body), request.body))

    async with (
        FakeWorker(script) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(b"".join(post(b"%d" % i) for i in range(10)) + post(b"9" * 30) * 40)
        assert [(await client.answer()).body for _ in range(10)] == [b"%d" % i for i in range(10)]


async def test_chunked_request_bodies_are_joined() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(head + chunk(b'{"pro') + chunk(b'mpt": 1}') + b"0\r\nTrailer: x\r\n\r\n")
        assert (await client.answer()).status == 200
        received = worker.received[0]
        assert received.body == b'{"prompt": 1}'
        assert received.values("content-length") == ["13"]
        assert received.values("trailer") == []


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        request = post(b'{"a": 1}', headers="Expect: 100-continue\r\n")
        client.send(request[:-8])
        assert (await client.answer()).status == 100
        assert worker.received == []
        client.send(request[-8:])
        assert (await client.answer()).status == 200
        assert worker.received[0].values("expect") == []


@pytest.mark.parametrize("status", [b"400 Bad", b"429 Too Many", b"500 Oops", b"503 Busy"])
async def test_a_workers_error_is_the_clients_answer(status: bytes) -> None:
    raw = b"HTTP/1.1 " + status + b"\r\nretry-after: 7\r\ncontent-length: 3\r\n\r\nno!"
    async with (
        FakeWorker(always(raw)) as one,
        FakeWorker(always(raw), name="v") as two,
        gateway_before(one, two) as gateway,
    ):
        answer = await ask(gateway, post())
        assert (answer.status, answer.body) == (int(status[:3]), b"no!")
        assert answer.headers["retry-after"] == "7"
        assert len(one.received) + len(two.received) == 1
        assert len(gateway.membership.ready()) == 2


async def test_connections_to_a_worker_are_used_again() -> None:
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker, health_interval_seconds=30.0) as gateway,
    ):
        before = worker.num_connections
        for _ in range(20):
            assert (await ask(gateway, post())).status == 200
        assert worker.num_connections == before
        assert gateway.num_connections == 1


async def test_other_paths_under_v1_are_forwarded_and_the_rest_is_not() -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        for path in ("/v1/embeddings", "/v1/responses", "/v1/audio/speech?x=1", "/tokenize"):
            assert (await ask(gateway, post(path=path))).status == 200
        assert [r.target for r in worker.received][2] == "/v1/audio/speech?x=1"
        for path in ("/", "/admin", "/v2/x", "/metricsx"):
            answer = await ask(gateway, get(path))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, 404)
        assert len(worker.received) == 4


async def test_a_large_body_and_a_large_answer_pass() -> None:
    large = b"x" * (3 * 2**20)
    raw = OK + b"content-length: %d\r\n\r\n" % len(large) + large
    async with FakeWorker(always(raw)) as worker, gateway_before(worker) as gateway:
        answer = await ask(gateway, post(large))
        assert answer.body == large
        assert worker.received[0].body == large
