"""Tens of thousands of requests of every fate leave a gateway as it was.

The workers answer at once, so the gateway is the busiest of all. Most requests end well, some are
streamed, refused by either side, broken off by the worker or given up by the client; and every
so often a worker is killed and starts again.
"""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fake_worker import Client, post, until
from process_fleet import (
    ProcessOnPort,
    eventually,
    fast_worker,
    gateway_process,
)

NUM_REQUESTS = 50_000
NUM_FIRST = 20_000  # after so many, everything that is bounded is full
NUM_CLIENTS = 48
REQUESTS_PER_RESTART = 5_000
MIB = 2**20
TEXT = "This prompt has a number, and some more words. " * 40


def request(number: int) -> bytes:
    """Two kilobytes, half of them begun alike; what becomes of it depends on the number."""
    text = f"{TEXT}{number}" if number % 2 else f"{number}{TEXT}"
    body: dict[str, object] = {"model": "m", "prompt": text, "stream": number % 4 == 0}
    fate = FATES.get(number % 100)
    if fate == "malformed":
        return b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n"
    if fate == "nowhere":
        return post(path="/nowhere")
    if fate is not None:
        body["fate"] = fate
    return post(json.dumps(body).encode())


FATES = {
    11: "refuse",
    12: "refuse",
    22: "limit",
    33: "break",
    44: "hang",
    45: "hang",
    55: "flood",
    66: "malformed",
    77: "nowhere",
}
IS_LEFT = {"hang", "flood"}  # by its client


@dataclass
class Crowd:
    """Clients that send one request after the other, as long as there are some."""

    gateway: ProcessOnPort
    seen: Counter[int | str] = field(default_factory=Counter)  # statuses, and other ends
    num_sent: int = 0

    async def send(self, up_to: int) -> None:
        await asyncio.gather(*(self._visit(up_to) for _ in range(NUM_CLIENTS)))

    async def _visit(self, up_to: int) -> None:
        client: Client | None = None
        while self.num_sent < up_to:
            self.num_sent += 1
            if client is None:
                client = Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))
            if not await self._ask(client, self.num_sent):
                client.close()
                client = None
        if client is not None:
            client.close()

    async def _ask(self, client: Client, number: int) -> bool:
        """Whether the connection can be used again."""
        client.send(request(number))
        fate = FATES.get(number % 100)
        if fate in IS_LEFT:
            if fate == "flood":
                await client.reader.read(1000)
            else:
                await asyncio.sleep(0.01)
            self.seen["left"] += 1
            return False
        answer = await client.answer()
        is_error = b'"type":"worker_lost"' in answer.body and answer.status == 200
        self.seen["ended" if is_error or not answer.is_complete else answer.status] += 1
        return answer.is_complete and answer.headers.get("connection") != "close"


@dataclass
class Kept:
    """What the gateway has open, in use and in memory when nothing is going on."""

    num_descriptors: int
    num_tasks: float
    num_blocks: float
    memory: int


async def restart(worker: ProcessOnPort, stack: AsyncExitStack) -> ProcessOnPort:
    worker.kill()
    return await stack.enter_async_context(fast_worker(port=worker.port))


async def is_quiet(gateway: ProcessOnPort, num_workers: int) -> bool:
    return (
        await gateway.metric("expediter_requests_in_flight") == 0
        and await gateway.metric("expediter_outstanding_tokens") == 0
        and await gateway.metric("expediter_worker_up") == num_workers
        and await gateway.metric("expediter_worker_breaker") == 0
    )


async def test_nothing_is_left_of_fifty_thousand_requests(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(fast_worker()) for _ in range(2)]
        gateway = await stack.enter_async_context(
            gateway_process(tmp_path, *workers, routing__assumed_blocks=4096)
        )
        crowd = Crowd(gateway)

        async def send(up_to: int) -> Kept:
            while (start := crowd.num_sent) < up_to:
                sending = asyncio.create_task(crowd.send(start + REQUESTS_PER_RESTART))
                await until(lambda: crowd.num_sent > start + REQUESTS_PER_RESTART // 2)
                which = start // REQUESTS_PER_RESTART % 2
                workers[which] = await restart(workers[which], stack)
                await sending
            # With both anew, no connection that was pooled is left.
            workers[:] = [await restart(worker, stack) for worker in workers]
            await eventually(lambda: is_quiet(gateway, 2))
            return Kept(
                gateway.num_descriptors,
                await gateway.metric("expediter_tasks"),
                await gateway.metric("expediter_memory_blocks"),
                gateway.memory,
            )

        first = await send(NUM_FIRST)
        last = await send(NUM_REQUESTS)
    assert sum(crowd.seen.values()) == NUM_REQUESTS
    assert crowd.seen[200] > 0.5 * NUM_REQUESTS  # fewer where restarts are slow: 503 is fast
    assert {400, 404, 429, "left", "ended"} <= set(crowd.seen)
    # But for a probe that may be under way.
    assert abs(last.num_descriptors - first.num_descriptors) <= 4
    assert abs(last.num_tasks - first.num_tasks) <= 4
    # One that is kept of each request would be thirty thousand; some wait for the collector.
    assert last.num_blocks - first.num_blocks < 1.5 * (NUM_REQUESTS - NUM_FIRST)
    # Half of it is what the allocator keeps for the next large body.
    assert last.memory - first.memory < 64 * MIB
