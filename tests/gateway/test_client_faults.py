"""Clients that leave, stall, idle or send too much, at a gateway that is a process of its own."""

import asyncio
import json
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from fake_worker import ask, client_of, get, post
from process_fleet import (
    ProcessOnPort,
    complete,
    completion,
    eventually,
    fast_worker,
    gateway_process,
    matched_tokens,
    stream,
    tokens,
    worker_process,
)

MIB = 2**20


async def has_nothing_to_do(worker: ProcessOnPort) -> bool:
    running = await worker.metric("vllm:num_requests_running")
    return running + await worker.metric("vllm:num_requests_waiting") == 0


async def is_busy(worker: ProcessOnPort) -> bool:
    return await worker.metric("vllm:num_requests_running") > 0


async def test_a_client_that_leaves_during_its_prefill_frees_the_worker(tmp_path: Path) -> None:
    """Nine thousand tokens at 64 a step of 50 ms would take seven seconds, and then some come."""
    async with (
        worker_process("--step-seconds", "0.05") as worker,
        gateway_process(tmp_path, worker) as gateway,
    ):
        for is_streamed in (False, True):
            async with client_of(gateway) as client:
                client.send(completion(tokens("a", 9000), stream=is_streamed))
                await eventually(lambda: is_busy(worker))
            await eventually(lambda: has_nothing_to_do(worker))
        assert await worker.metric("vllm:generation_tokens_total") == 0
        assert await gateway.metric("expediter_requests_in_flight") == 0


async def test_a_client_that_leaves_within_its_answer_frees_the_worker(tmp_path: Path) -> None:
    async with worker_process() as worker, gateway_process(tmp_path, worker) as gateway:
        async with stream(gateway, tokens("a"), max_tokens=9000) as answer:
            await answer.event()
            assert await is_busy(worker)
        await eventually(lambda: has_nothing_to_do(worker))
        assert await worker.metric("vllm:generation_tokens_total") < 9000
        assert await gateway.metric("expediter_requests_in_flight") == 0


def slow_reader(port: int) -> socket.socket:
    """A client whose system buffers next to nothing for it."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", port))
    reader.sendall(post(b'{"prompt": "x", "stream": true, "fate": "flood"}'))
    return reader


async def test_readers_of_a_kilobyte_a_second_cost_little_memory_and_delay_nobody(
    tmp_path: Path,
) -> None:
    """Four answers of 48 MiB each; what is not read stays with the worker."""
    async with fast_worker() as worker, gateway_process(tmp_path, worker) as gateway:
        assert (await complete(gateway, "x")).status == 200
        before = gateway.memory
        readers = [slow_reader(gateway.port) for _ in range(4)]
        most = 0
        for _ in range(15):
            await asyncio.sleep(0.1)
            for reader in readers:
                assert await asyncio.to_thread(reader.recv, 100)
            assert (await complete(gateway, "x")).status == 200
            most = max(most, gateway.memory)
        assert most - before < 24 * MIB
        for reader in readers:
            reader.close()
        await eventually(lambda: has_nothing_in_flight(gateway))


async def has_nothing_in_flight(gateway: ProcessOnPort) -> bool:
    return await gateway.metric("expediter_requests_in_flight") == 0


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """As many as most systems give a process that does not ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
async def test_a_thousand_idle_connections_hinder_nobody_and_leave_nothing(
    tmp_path: Path,
) -> None:
    """The gateway takes what descriptors it may have; this process does the same."""
    async with fast_worker() as worker, gateway_process(tmp_path, worker) as gateway:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        await complete(gateway, "x")
        before = gateway.num_descriptors
        connect = asyncio.open_connection
        idle = [await connect("127.0.0.1", gateway.port) for _ in range(1000)]
        answers = await asyncio.gather(*(complete(gateway, f"{i}") for i in range(50)))
        assert {answer.status for answer in answers} == {200}
        assert gateway.num_descriptors > 1000
        for _, writer in idle:
            writer.close()

        async def has_closed_them() -> bool:
            return gateway.num_descriptors <= before + 50  # and some to the worker

        await eventually(has_closed_them)
        assert (await complete(gateway, "x")).status == 200


async def test_a_body_of_64_mib_is_too_large_unless_that_is_allowed(tmp_path: Path) -> None:
    body = json.dumps({"prompt": "y" * 64 * MIB}).encode()
    async with fast_worker() as worker:
        async with gateway_process(tmp_path, worker) as gateway:
            answer = await ask(gateway, post(body))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (413, 413)
        limit = {"max_body_bytes": 65 * MIB}
        async with gateway_process(tmp_path, worker, **limit) as gateway:
            sending = asyncio.create_task(ask(gateway, post(body)))
            num_alive = 0
            while not sending.done():
                assert (await ask(gateway, get("/health"))).status == 200
                num_alive += 1
            assert (await sending).status == 200
            assert num_alive > 3


async def test_many_requests_at_once_are_spread_whether_they_share_a_prefix_or_nothing(
    tmp_path: Path,
) -> None:
    """Two hundred of each at four workers, at default settings, before any is answered."""
    async with (
        fast_worker() as a,
        fast_worker() as b,
        fast_worker() as c,
        fast_worker() as d,
        gateway_process(tmp_path, a, b, c, d) as gateway,
    ):
        for prompts in (
            [f"{'shared system prompt ' * 200} question {n}" for n in range(200)],
            [f"{n} has a prompt of its own. " * 200 for n in range(200)],
        ):
            answers = await asyncio.gather(
                *(ask(gateway, completion(p, fate="late")) for p in prompts)
            )
            seen = Counter(answer.headers["x-expediter-worker"] for answer in answers)
            assert len(seen) == 4
            assert max(seen.values()) <= 80, seen


async def test_bodies_are_not_kept_once_they_are_answered_or_their_client_has_left(
    tmp_path: Path,
) -> None:
    """Neither by idle connections, nor with heads that are remembered, nor half sent."""
    async with (
        fast_worker() as worker,
        gateway_process(tmp_path, worker) as gateway,
        AsyncExitStack() as stack,
    ):
        body = json.dumps({"prompt": "y" * 16 * MIB}).encode()
        await complete(gateway, "x")
        for number in range(8):
            if number == 2:  # what the first ones need is kept by the allocator
                before = gateway.memory
            client = await stack.enter_async_context(client_of(gateway))
            client.send(post(body, headers=f"X-Number: {number}\r\n"))
            assert (await client.answer()).status == 200
            async with client_of(gateway) as leaver:
                leaver.send(post(body)[:-MIB])
                await leaver.writer.drain()
        assert gateway.memory - before < 48 * MIB


async def test_a_gateway_out_of_descriptors_refuses_requests_and_blames_no_worker(
    tmp_path: Path,
) -> None:
    """It can open one more, and twelve clients hang; what it knows of the worker stays."""
    async with (
        fast_worker() as worker,
        gateway_process(tmp_path, worker) as gateway,
        AsyncExitStack() as stack,
    ):
        assert (await complete(gateway, "x" * 999)).status == 200
        clients = [await stack.enter_async_context(client_of(gateway)) for _ in range(12)]
        for client in clients:  # has been accepted
            client.send(get("/health"))
            await client.answer()
        process = psutil.Process(gateway.process.pid)
        before = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (gateway.num_descriptors + 1, before[1]))
        for client in clients:
            client.send(post(b'{"prompt": "x", "fate": "hang"}'))
        answers = [asyncio.create_task(client.answer()) for client in clients]
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        refused = next(n for n, answer in enumerate(answers) if answer.done())
        assert (await answers[refused]).status == 503
        clients[refused].send(get("/ready"))
        assert (await clients[refused].answer()).status == 200
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        process.rlimit(psutil.RLIMIT_NOFILE, before)
        assert matched_tokens(await complete(gateway, "x" * 999)) > 0
