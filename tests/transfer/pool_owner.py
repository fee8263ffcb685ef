"""A process with a pool to be read: writes its handles, and lives until its input ends.

python pool_owner.py KIND NUM_BLOCKS
"""

import asyncio
import base64
import sys

import msgspec
import numpy as np

from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory
from expediter.transfer.transports import transports


def layout(num_blocks: int) -> KVLayout:
    return KVLayout(
        num_layers=3,
        num_kv_heads=2,
        num_blocks=num_blocks,
        block_size=4,
        head_size=8,
        dtype="float16",
        element_bytes=2,
    )


def content(num_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(7).integers(0, 256, num_bytes, np.uint8)


def main() -> None:
    kind, num_blocks = sys.argv[1], int(sys.argv[2])
    pool = layout(num_blocks)
    memory = PoolMemory.create(pool.num_bytes)
    memory.array[:] = content(pool.num_bytes)
    made = transports(memory, pool, kinds=[kind])
    handles = base64.b64encode(msgspec.msgpack.encode([each.describe() for each in made]))
    sys.stdout.write(f"handles {handles.decode()}\n")  # NIXL writes lines of its own
    sys.stdout.flush()
    sys.stdin.read()
    for each in made:
        asyncio.run(each.close())


if __name__ == "__main__":
    main()
