"""How long a match takes, and what a cached block costs: python benchmarks/prefix_index.py

A 100,000-token prompt against 1,000 workers that hold prefixes of different lengths, in three
fleets: a few hold much of it, each holds another length, and nobody holds anything. Times are
after hashing, which is timed by itself. Memory is what the index gains for each block a worker
announces, its engine's hash included.
"""

import argparse
import random
import time
import tracemalloc
from collections.abc import Callable

from expediter.kvcache.events import BlockStored
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt

BLOCK_SIZE = 16
NUM_REPEATS = 50


def new_index(num_workers: int) -> PrefixIndex:
    index = PrefixIndex(clock=time.monotonic, block_size=BLOCK_SIZE, assumed_capacity=65536)
    for number in range(num_workers):
        index.add_worker(WorkerId(f"w{number}"))
    return index


def store(index: PrefixIndex, number: int, tokens: list[int]) -> None:
    """Worker `number` announces the full blocks of `tokens`."""
    num_blocks = len(tokens) // BLOCK_SIZE
    if num_blocks:
        hashes = [number.to_bytes(4, "big") + i.to_bytes(4, "big") for i in range(num_blocks)]
        event = BlockStored(
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=tokens[: num_blocks * BLOCK_SIZE],
            block_size=BLOCK_SIZE,
        )
        index.apply(WorkerId(f"w{number}"), event)


def median_ms(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(NUM_REPEATS):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[NUM_REPEATS // 2] * 1000


def lengths(fleet: str, num_tokens: int, num_workers: int, rng: random.Random) -> list[int]:
    """How many tokens of the prompt each worker holds."""
    match fleet:
        case "a few hold much":
            shared = 2048  # the system prompt is everywhere, the document at ten
            return [rng.randrange(num_tokens) if i < 10 else shared for i in range(num_workers)]
        case "all lengths differ":
            return [num_tokens * i // num_workers for i in range(num_workers)]
        case _:
            return [0] * num_workers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1_000)
    options = parser.parse_args()
    rng = random.Random(1)
    tokens = [rng.randrange(50_000) for _ in range(options.tokens)]
    hashing = median_ms(lambda: token_prompt(tokens).keys(BLOCK_SIZE))
    print(f"{options.tokens} tokens, {options.workers} workers, blocks of {BLOCK_SIZE} tokens")
    print(f"hashing                    {hashing:8.3f} ms")
    for fleet in ("nobody holds any", "a few hold much", "all lengths differ"):
        index = new_index(options.workers)
        for number, held in enumerate(lengths(fleet, len(tokens), options.workers, rng)):
            store(index, number, tokens[:held])
        prompt = token_prompt(tokens)
        prompt.keys(BLOCK_SIZE)
        print(f"match, {fleet:20}{median_ms(lambda: index.match(prompt)):8.3f} ms")  # noqa: B023
    print_memory(tokens)


def print_memory(tokens: list[int]) -> None:
    for num_workers, what in ((1, "held by one worker"), (8, "held by each of 8")):
        index = new_index(num_workers)
        tracemalloc.start()
        for number in range(num_workers):
            store(index, number, tokens)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        num_blocks = sum(index.num_blocks(WorkerId(f"w{n}")) for n in range(num_workers))
        print(f"memory, {what:19}{size / num_blocks:8.0f} bytes a block and worker")


if __name__ == "__main__":
    main()
