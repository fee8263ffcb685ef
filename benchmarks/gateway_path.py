"""What a request costs within the gateway's process: Python only, no sockets, no kernel.

    python benchmarks/gateway_path.py [--policy round-robin] [--kilobytes 2] [--tokenizer GGUF]
        [--bytecodes]

A batch of clients' bytes is handed to the gateway's connections, and the worker's answers to its
connections to workers. Printed is the least CPU time of many batches, for each request. With
`--bytecodes`, functions of the gateway are listed by how many bytecodes each runs for a request:
a figure that does not depend on what else the machine does.
"""

import argparse
import asyncio
import gc
import random
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from gateway_contenders import NONCE, conversation

from expediter.assemble.policies import build_policy
from expediter.cluster.member import Model
from expediter.cluster.membership import WorkerStatus
from expediter.config import GatewayConfig, RoutingConfig, WorkerEndpoint
from expediter.gateway.gateway import Gateway
from expediter.gateway.memory import keep_freed_memory
from expediter.gateway.server import ClientConnection
from expediter.gateway.upstream import UpstreamConnection
from expediter.tokenizer import load_tokenizer

NUM_CLIENTS = 64
BODY = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1700000000,"model":"fake","choices":['
    b'{"index":0,"message":{"role":"assistant","content":"Hello from a worker, in a short answer."}'
    b',"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"completion_tokens":12'
    b',"total_tokens":512}}'
)
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Transport(asyncio.Transport):
    """Takes what is written, and says of which connection it was."""

    def __init__(self, written: list[Any], protocol: object) -> None:
        super().__init__()
        self._written = written
        self._protocol = protocol

    def is_closing(self) -> bool:
        """It never is."""
        return False

    def write(self, data: object) -> None:  # noqa: ARG002
        """Note it."""
        self._written.append(self._protocol)

    def writelines(self, list_of_data: object) -> None:
        """Note them as one."""
        self.write(list_of_data)


class Scene:
    """A gateway with 64 clients, two workers, and nothing between them but its own code."""

    def __init__(self, gateway: Gateway, body: str) -> None:
        self._before, self._after = body.encode().split(NONCE.encode())
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json"
        self._head = f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        self._num_sent = 0
        self._asked: list[UpstreamConnection] = []
        self._answered: list[ClientConnection] = []
        for member in gateway.membership.members.values():
            member.health = WorkerStatus.UP
            member.models = {"fake": Model("fake")}
            for _ in range(NUM_CLIENTS):
                upstream = UpstreamConnection(member.client)  # type: ignore[arg-type]
                upstream.connection_made(Transport(self._asked, upstream))
                member.client.release(upstream)  # type: ignore[attr-defined]
        self._clients = [ClientConnection(gateway._server) for _ in range(NUM_CLIENTS)]
        for client in self._clients:
            client.connection_made(Transport(self._answered, client))

    async def batch(self) -> None:
        """One request of each client."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._ask)  # from the loop, as bytes come: not from this task
        await self._all(self._asked)
        loop.call_soon(self._answer)
        await self._all(self._answered)
        self._answered.clear()

    async def _all(self, written: list[Any]) -> None:
        while len(written) < NUM_CLIENTS:  # noqa: ASYNC110 - the loop turns, and that is all
            await asyncio.sleep(0)

    def _ask(self) -> None:
        for client in self._clients:
            self._num_sent += 1
            nonce = b"%0*d" % (len(NONCE), self._num_sent)
            client.data_received(b"".join((self._head, self._before, nonce, self._after)))

    def _answer(self) -> None:
        asked = list(self._asked)
        self._asked.clear()
        for upstream in asked:
            upstream.data_received(ANSWER)


async def microseconds(scene: Scene, *, num_batches: int) -> float:
    """The least CPU time of a request, over many batches."""
    least = float("inf")
    for _ in range(num_batches):
        start = time.process_time()
        for _ in range(4):
            await scene.batch()
        least = min(least, time.process_time() - start)
    return least / (4 * NUM_CLIENTS) * 1e6


async def bytecodes(scene: Scene) -> Counter[str]:
    """How many bytecodes each function runs for a request."""
    counts: Counter[str] = Counter()

    def enter(frame: FrameType, _: str, __: object) -> Any:
        file = frame.f_code.co_filename.partition("/src/expediter/")[2]
        if not file:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        name = f"{file} {frame.f_code.co_qualname}"

        def count(_: FrameType, event: str, __: object) -> Any:
            counts[name] += event == "opcode"
            return count

        return count

    sys.settrace(enter)
    await scene.batch()
    sys.settrace(None)
    return counts


async def measure(options: argparse.Namespace) -> None:
    keep_freed_memory()
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    config = GatewayConfig(
        workers=tuple(WorkerEndpoint(url=url) for url in urls),
        routing=RoutingConfig(policy=options.policy),
    )
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    policy = build_policy(config.routing, clock=time.monotonic, rng=random.Random(1))
    gateway = Gateway(config, policy=policy, tokenizer=tokenizer)
    size = options.kilobytes * 1024
    scene = Scene(gateway, conversation(size, min(size - 170, 20_000)))
    for _ in range(20):
        await scene.batch()
    gc.collect()
    gc.freeze()
    if options.bytecodes:
        counts = await bytecodes(scene)
        print(f"{counts.total() / NUM_CLIENTS:8.0f} bytecodes a request")
        for name, count in counts.most_common(60):
            print(f"{count / NUM_CLIENTS:8.1f} {name}")
    else:
        print(f"{await microseconds(scene, num_batches=options.batches):.1f} us a request")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="round-robin")
    parser.add_argument("--kilobytes", type=int, default=2)
    parser.add_argument("--tokenizer", type=Path, metavar="FILE")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--bytecodes", action="store_true")
    uvloop.run(measure(parser.parse_args()))
