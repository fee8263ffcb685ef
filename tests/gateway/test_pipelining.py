"""Requests that are sent ahead: each is answered, in order, while its client is there."""

import asyncio

from fake_worker import (
    JSON_OK,
    FakeWorker,
    Received,
    always,
    client_of,
    gateway_before,
    post,
    until,
)

HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"


async def test_thousands_of_requests_in_one_piece_are_all_answered() -> None:
    """More than the interpreter could nest, if one began within the end of the one before."""
    async with gateway_before() as gateway, client_of(gateway) as client:
        client.send(HEALTH * 5000)
        for _ in range(5000):
            assert (await client.answer()).status == 200


async def test_answers_come_in_order_whoever_gives_them() -> None:
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send((post() + HEALTH) * 20)
        bodies = [(await client.answer()).body for _ in range(40)]
    assert bodies == [bodies[0], b'{"status":"ok"}'] * 20
    assert bodies[0] != bodies[1]
    assert len(worker.received) == 20


async def test_what_was_sent_ahead_is_dropped_with_the_client() -> None:
    async def slow(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        await always(JSON_OK)(request, writer)

    async with FakeWorker(slow) as worker, gateway_before(worker) as gateway:
        async with client_of(gateway) as client:
            client.send(post() * 10)
            await client.answer()
        await until(lambda: not gateway._server.connections)
        assert len(worker.received) < 10
