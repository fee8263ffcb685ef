"""Clients that leave or stall, gateways that stop: the worker notices, and nothing stays."""

import asyncio

import pytest
from fake_worker import (
    JSON_OK,
    SSE_HEAD,
    FakeWorker,
    Received,
    always,
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


async def test_a_client_that_leaves_cancels_its_request_at_the_worker() -> None:
    async with FakeWorker(silence) as worker, gateway_before(worker) as gateway:
        async with client_of(gateway) as client:
            client.send(post())
            await until(lambda: len(worker.received) == 1)
        await until(lambda: worker.num_hung_up == 1)
        await until(lambda: gateway.dispatcher.work.num_requests("w") == 0)  # type: ignore[arg-type]


async def test_a_client_that_leaves_in_the_middle_of_a_stream_cancels_it_too() -> None:
    async def endless(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(EVENT))
            await asyncio.sleep(0.001)

    async with FakeWorker(endless) as worker, gateway_before(worker) as gateway:
        async with client_of(gateway) as client:
            client.send(post())
            await client.reader.readuntil(chunk(EVENT) * 3)
        await until(lambda: worker.num_hung_up == 1)


async def test_a_slow_reader_holds_its_worker_back() -> None:
    sent = 0

    async def flood(_: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(SSE_HEAD)
        for _i in range(64):
            writer.write(chunk(b"x" * 2**20))
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")

    async with (
        FakeWorker(flood) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(post())
        await client.reader.readuntil(b"\r\n\r\n")
        before = -1
        while sent != before:  # until it gets no further
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 32
        answer = 0
        while answer < 64 * 2**20:
            answer += len(await client.reader.read(2**20))
        await until(lambda: sent == 64)


async def test_a_client_that_never_reads_is_dropped_in_the_end() -> None:
    async def flood(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(b"x" * 2**20))
            await writer.drain()

    async with (
        FakeWorker(flood) as worker,
        gateway_before(worker, idle_seconds=0.2) as gateway,
        client_of(gateway) as client,
    ):
        client.send(post())
        await until(lambda: worker.num_hung_up == 1)


async def test_stopping_lets_running_requests_finish_and_takes_no_more() -> None:
    gate = asyncio.Event()

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(JSON_OK)

    async with (
        FakeWorker(script) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
        client_of(gateway) as idle,
    ):
        client.send(post())
        await until(lambda: len(worker.received) == 1)
        port = gateway.port
        stopping = asyncio.create_task(gateway.stop())
        assert await idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        gate.set()
        assert (await client.answer()).body == b"{}"
        assert await client.is_closed()
        await stopping


async def test_stopping_gives_up_on_what_takes_too_long() -> None:
    async with FakeWorker(silence) as worker:
        async with (
            gateway_before(worker, shutdown_seconds=0.1) as gateway,
            client_of(gateway) as client,
        ):
            client.send(post())
            await until(lambda: len(worker.received) == 1)
            await gateway.stop()
            assert await client.is_closed()
        await until(lambda: worker.num_hung_up == 1)


async def test_after_many_requests_of_every_fate_nothing_is_left() -> None:
    async def fickle(request: Received, writer: asyncio.StreamWriter) -> None:
        fate = len(worker.received) % 5
        if fate == 0:
            writer.transport.abort()
        elif fate == 1:
            await hang_up(SSE_HEAD + chunk(EVENT))(request, writer)
        elif fate == 2:
            await silence(request, writer)
        else:
            writer.write(SSE_HEAD + chunk(EVENT) + b"0\r\n\r\n")

    async def visit(number: int) -> None:
        async with client_of(gateway) as client:
            client.send(post(b'{"prompt": "%d"}' % number))
            try:
                async with asyncio.timeout(0.3):
                    await client.answer()
            except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                pass

    async with (
        FakeWorker(fickle, name="a") as worker,
        FakeWorker(always(JSON_OK), name="b") as v,
        gateway_before(worker, v) as gateway,
    ):
        await asyncio.gather(*(visit(i) for i in range(100)))
        work = gateway.dispatcher.work
        await until(lambda: not any(map(work.num_requests, gateway.membership.members)))
        await until(lambda: not gateway._server.connections)
        # A connection that was given up is gone a moment after its request.
        await until(
            lambda: all(c.exchange is None for client in gateway._clients for c in client._all)
        )
