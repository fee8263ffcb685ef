"""How much naming a prompt's blocks costs over the hash function itself.

The bare figure is one call of the same hash for each block over bytes that lie ready: 32 of a
parent and four a token. What `hash_blocks` does besides is what is compared: turn token ids
into bytes, cut them up, and put each parent before its child. Both run alternately in one
process; the smallest of many runs counts. Making bytes of a list of integers costs the same
whatever the block size ("to bytes"), so with large blocks it outweighs the hashing.

    python benchmarks/hashing.py
"""

import hashlib
import random
import time
from array import array
from collections.abc import Callable

from expediter.kvcache.hashing import TOKEN_BYTES, CacheNamespace, hash_blocks

NUM_TOKENS = 100_000
NUM_RUNS = 60
NAMESPACE = CacheNamespace(model="benchmark")


def bare(name: str, buffers: list[bytes]) -> Callable[[], object]:
    """One call a buffer; every candidate gives 32 bytes."""
    if name == "blake2b":
        blake2b = hashlib.blake2b
        return lambda: [blake2b(buffer, digest_size=32).digest() for buffer in buffers]
    sha256 = hashlib.sha256
    return lambda: [sha256(buffer).digest() for buffer in buffers]


def best_seconds(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(NUM_RUNS):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    rng = random.Random(0)
    token_ids = [rng.randrange(150_000) for _ in range(NUM_TOKENS)]
    print(f"{NUM_TOKENS} tokens, milliseconds, best of {NUM_RUNS}")
    columns = ("block", "to bytes", "hash_blocks", "sha256", "blake2b", "ratio to sha256")
    print(" ".join(f"{column:>11}" for column in columns))
    for block_size in (16, 32, 64, 128):
        size = 32 + TOKEN_BYTES * block_size
        buffers = [rng.randbytes(size) for _ in range(NUM_TOKENS // block_size)]
        best = best_seconds(
            {
                "bytes": lambda: array("I", token_ids).tobytes(),
                "named": lambda size=block_size: hash_blocks(
                    token_ids, block_size=size, namespace=NAMESPACE
                ),
                "sha256": bare("sha256", buffers),
                "blake2b": bare("blake2b", buffers),
            }
        )
        figures = [best[name] * 1e3 for name in ("bytes", "named", "sha256", "blake2b")]
        figures.append(best["named"] / best["sha256"])
        print(f"{block_size:>11} " + " ".join(f"{figure:>11.2f}" for figure in figures))


if __name__ == "__main__":
    main()
