"""How fast a prompt's KV moves between two processes, beside memcpy, a bare socket and prefill.

The other process owns a pool; this one pulls prompts from it into its own pool, by each transport
that works here. The same number of bytes is also copied in one piece within memory (memcpy, from
the same mapped pool), and sent in one piece through a socket by two loops that do nothing else
(socket). In each round every contender runs once, in turn, each after other memory was written, so
that no caches help anybody; each copies in one thread. Ratios to memcpy are medians of the rounds'
ratios, rates come from the median times. What is timed is the plan and the pull, from the event
loop's view.

The blocks of a prompt, at both sides:

    rising     neighbours, as in a fresh pool
    falling    neighbours the other way at the source, rising at the target
    used       what a block pool has for a prompt after others went through it: only prompts at the
               source; at the target also answers of up to 320 tokens, block by block
    scattered  at random: the worst there is, which no pool of ours hands out

`share` is the time of the pull over that of the prompt's prefill.

    python benchmarks/transfer.py [--model smollm2] [--tokens 1024 4096 16384] [--rounds 7]
        [--pool PROMPTS] [--transports shared-memory tcp nixl] [--prefill-rate RATE] [--warm]
"""

import argparse
import asyncio
import base64
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from expediter.errors import TransferError
from expediter.kvcache.block_pool import BlockPool
from expediter.kvcache.hashing import BlockHash
from expediter.kvcache.radix_cache import RadixPrefixCache
from expediter.transfer.copy_plan import copy_plan
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory
from expediter.transfer.transport import KVHandle, KVPeer, KVTransport
from expediter.transfer.transports import DEFAULT_KINDS, choose, transports

BLOCK_SIZE = 16
MAX_ANSWER_BLOCKS = 20
EVICTING_BYTES = 128 * 1024 * 1024  # beyond any cache
HOST = "127.0.0.1"
MODELS = {"smollm2": (30, 3, 64), "llama-70b": (80, 8, 128)}  # layers, KV heads, head size
ORDERS = ("rising", "falling", "used", "scattered")
Blocks = Sequence[int]
Run = Callable[[Blocks, Blocks], Awaitable[None]]


def pool_layout(model: str, num_blocks: int) -> KVLayout:
    num_layers, num_kv_heads, head_size = MODELS[model]
    return KVLayout(
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        head_size=head_size,
        dtype="bfloat16",
        element_bytes=2,
    )


class UsedPool:
    """A block pool that prompts of many lengths have gone through, four at a time.

    Each takes its blocks at once, as workers do, then one at a time for up to `max_answer_blocks`.
    """

    def __init__(self, num_blocks: int, rng: random.Random, *, max_answer_blocks: int) -> None:
        self._pool = BlockPool(num_blocks, cache=RadixPrefixCache())
        self._num_names = 0
        running: list[tuple[list[int], int, int]] = []
        num_taken = 0
        while num_taken < 10 * num_blocks:
            if len(running) < 4:
                num_prompt = 1 + int(rng.lognormvariate(4, 1)) % (num_blocks // 6)
                running.append(([], num_prompt, num_prompt + rng.randint(0, max_answer_blocks)))
            index = rng.randrange(len(running))
            blocks, num_prompt, num_all = running[index]
            num_held = len(blocks)
            blocks += self._take(1 if blocks else num_prompt)
            num_taken += len(blocks) - num_held
            if len(blocks) >= num_all:
                self._free(running.pop(index)[0])
        for blocks, _, _ in running:
            self._free(blocks)

    def prompt(self, num_blocks: int) -> list[int]:
        """Blocks for a prompt, while nobody else takes any."""
        blocks = self._take(num_blocks)
        self._free(blocks)
        return blocks

    def _take(self, num_blocks: int) -> list[int]:
        blocks = self._pool.allocate(num_blocks)
        assert blocks is not None
        return blocks

    def _free(self, blocks: list[int]) -> None:
        """Free a sequence's blocks, all but the last of them cached under names of their own."""
        first, self._num_names = self._num_names, self._num_names + len(blocks)
        names = [BlockHash(number.to_bytes(8, "big")) for number in range(first, self._num_names)]
        run = self._pool.hold(self._pool.cache.root)
        if blocks[:-1]:
            run = self._pool.cache.insert(run, names[:-1], blocks[:-1])
        self._pool.give_back(blocks[-1:])
        self._pool.release(run)


def block_lists(order: str, num: int, num_blocks: int, rng: random.Random) -> tuple[Blocks, Blocks]:
    match order:
        case "rising":
            return range(num), range(num_blocks - num, num_blocks)
        case "falling":
            return range(num - 1, -1, -1), range(num_blocks - num, num_blocks)
        case "used":
            source = UsedPool(num_blocks, rng, max_answer_blocks=0)
            target = UsedPool(num_blocks, rng, max_answer_blocks=MAX_ANSWER_BLOCKS)
            return source.prompt(num), target.prompt(num)
        case _:
            return rng.sample(range(num_blocks), num), rng.sample(range(num_blocks), num)


def own(model: str, num_blocks: int, kinds: Sequence[str]) -> None:
    """The other process: a pool, its handles, and a bare socket's sender, until its input ends."""
    layout = pool_layout(model, num_blocks)
    memory = PoolMemory.create(layout.num_bytes)
    memory.array[:] = 1
    made = transports(memory, layout, kinds=kinds, host=HOST)
    listener = socket.create_server((HOST, 0))
    threading.Thread(target=send_bare, args=(listener, memory.array), daemon=True).start()
    handles = base64.b64encode(msgspec.msgpack.encode([each.describe() for each in made]))
    print("handles", listener.getsockname()[1], handles.decode(), flush=True)
    sys.stdin.read()
    for each in made:
        asyncio.run(each.close())


def send_bare(listener: socket.socket, array: NDArray[np.uint8]) -> None:
    sock, _ = listener.accept()
    while asked := sock.recv(8, socket.MSG_WAITALL):
        sock.sendall(array[: int.from_bytes(asked, "big")].data)


def receive_bare(sock: socket.socket, view: memoryview) -> None:
    sock.sendall(len(view).to_bytes(8, "big"))
    while view:
        view = view[sock.recv_into(view) :]


class Contenders:
    """Everything that copies a prompt here, by name."""

    def __init__(self, layout: KVLayout, kinds: Sequence[str]) -> None:
        self.layout = layout
        self.memory = PoolMemory.create(layout.num_bytes)
        self.memory.array[:] = 2
        self.kinds = list(kinds)
        self.runs: dict[str, Run] = {}

    async def connect(
        self, handles: Sequence[KVHandle], port: int, local: NDArray[np.uint8]
    ) -> None:
        """Reach the owner's pool by everything that can; `local` is the pool, mapped."""
        self._bare = socket.create_connection((HOST, port))
        self.runs["memcpy"] = partial(self._memcpy, local)
        self.runs["socket"] = self._socket
        for kind in self.kinds:
            try:
                ours = transports(self.memory, self.layout, kinds=[kind], host=HOST)
            except TransferError as error:
                print(f"left out: {error}")
                continue
            found = choose(ours, handles)
            assert found is not None
            peer = await found[0].connect(found[1])
            self.runs[kind] = partial(self._pull, found[0], peer)

    async def _memcpy(self, local: NDArray[np.uint8], source: Blocks, _: Blocks) -> None:
        num_bytes = len(source) * self.layout.block_bytes
        self.memory.array[:num_bytes] = local[:num_bytes]

    async def _socket(self, source: Blocks, _: Blocks) -> None:
        num_bytes = len(source) * self.layout.block_bytes
        receive_bare(self._bare, self.memory.array[:num_bytes].data)

    async def _pull(
        self, transport: KVTransport, peer: KVPeer, source: Blocks, target: Blocks
    ) -> None:
        plan = copy_plan(peer.layout, self.layout, source_blocks=source, target_blocks=target)
        await transport.pull(peer, plan)


async def measure(
    runs: dict[str, Run], source: Blocks, target: Blocks, *, num_rounds: int, is_cold: bool
) -> dict[str, list[float]]:
    """Seconds of each contender in each round, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    other = np.zeros(EVICTING_BYTES if is_cold else 0, np.uint8)
    for _ in range(num_rounds + 1):
        for name, run in runs.items():
            other += 1  # takes the caches over
            start = time.perf_counter()
            await run(source, target)
            seconds[name].append(time.perf_counter() - start)
    return {name: taken[1:] for name, taken in seconds.items()}


def row(seconds: dict[str, list[float]], num_bytes: int, prefill_seconds: float) -> list[str]:
    memcpy = seconds["memcpy"]
    cells = [f"{num_bytes / 1e6:.0f}", f"{num_bytes / statistics.median(memcpy) / 1e9:.1f}"]
    for name, taken in seconds.items():
        if name == "memcpy":
            continue
        median = statistics.median(taken)
        ratio = statistics.median(a / b for a, b in zip(memcpy, taken, strict=True))
        rate = num_bytes / median / 1e9
        cells.append(f"{rate:.1f} ({ratio:.0%}), {median / prefill_seconds:.1%}")
    return cells


def start_owner(
    model: str, num_blocks: int, kinds: Sequence[str]
) -> tuple[subprocess.Popen[bytes], int, list[KVHandle]]:
    """The other process, its bare socket's port, and its pool's handles."""
    command = [sys.executable, __file__, "--own", str(num_blocks), "--model", model]
    command += ["--transports", *dict.fromkeys(["shared-memory", *kinds])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith(b"handles "))
    _, port, packed = line.split()
    handles = msgspec.msgpack.decode(base64.b64decode(packed), type=list[KVHandle])
    return process, int(port), handles


async def run(options: argparse.Namespace) -> None:
    rng = random.Random(1)
    most = max(options.tokens) // BLOCK_SIZE
    layout = pool_layout(options.model, int(most * options.pool))
    kinds = list(options.transports)
    process, port, handles = start_owner(options.model, layout.num_blocks, kinds)
    contenders = Contenders(layout, kinds)
    shared = next(handle for handle in handles if hasattr(handle, "path"))
    local = PoolMemory.open(shared.path, layout.num_bytes).array
    await contenders.connect(handles, port, local)
    names = [name for name in contenders.runs if name != "memcpy"]
    token_bytes = layout.block_bytes // BLOCK_SIZE
    print(f"{options.model}, {token_bytes} bytes a token; GB/s (of memcpy), share")
    print("| tokens | blocks | slices | MB | memcpy | " + " | ".join(names) + " |")
    print("|" + "--:|" * (5 + len(names)))
    for num_tokens in options.tokens:
        for order in options.orders:
            num = num_tokens // BLOCK_SIZE
            source, target = block_lists(order, num, layout.num_blocks, rng)
            plan = copy_plan(layout, layout, source_blocks=source, target_blocks=target)
            seconds = await measure(
                contenders.runs,
                source,
                target,
                num_rounds=options.rounds,
                is_cold=not options.warm,
            )
            cells = row(seconds, num * layout.block_bytes, num_tokens / options.prefill_rate)
            head = [str(num_tokens), order, str(len(plan))]
            print("| " + " | ".join(head + cells) + " |", flush=True)
    process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--orders", choices=ORDERS, nargs="+", default=ORDERS)
    parser.add_argument("--transports", choices=DEFAULT_KINDS, nargs="+", default=DEFAULT_KINDS)
    parser.add_argument("--pool", type=float, default=4.0, help="its size, in longest prompts")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", action="store_true", help="leave caches as they are")
    parser.add_argument("--prefill-rate", type=float, default=1200.0)
    parser.add_argument("--own", type=int, metavar="NUM_BLOCKS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        own(options.model, options.own, options.transports)
    else:
        asyncio.run(run(options))


if __name__ == "__main__":
    main()
