"""Where keys and values live: one flat pool of blocks, each with all its layers.

Axes, outermost first: block, layer, key or value, KV head, slot, head element. Two facts
follow. A block is contiguous over all layers, so another process can copy it in one run. And
one head of one layer of a block is a row of block_size x head_size elements at the same distance
from the next block's in every layer. So each layer sees a matrix of rows, which begins with its
own first row, and the same row numbers mean the same blocks in all of them: collecting a
request's keys and values is one `index_select`.

On CPU the pool is memory that other processes of the user may map (`transfer/memory.py`).
"""

import torch

from expediter.errors import ConfigError
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory, can_be_shared


class KVStore:
    """The pool, as each layer's attention wants it: rows to gather, slots to write.

    `memory` is what transports register; None on a GPU and where memory cannot be shared.
    """

    def __init__(self, layout: KVLayout, *, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = layout
        self.memory: PoolMemory | None = None
        if device.type == "cpu" and can_be_shared():
            self.memory = PoolMemory.create(layout.num_bytes)
            # The tensors keep the mapping alive, and it goes with the last of them.
            pool = torch.frombuffer(self.memory.buffer, dtype=dtype)
        else:
            pool = torch.zeros(layout.num_bytes // layout.element_bytes, dtype=dtype, device=device)
        width = 2 * layout.num_kv_heads * layout.block_size * layout.head_size
        starts = [pool[layer * width :] for layer in range(layout.num_layers)]
        self.pieces = [start.view(-1, layout.block_size * layout.head_size) for start in starts]
        self.slots = [start.view(-1, layout.head_size) for start in starts]

    def close(self) -> None:
        """Let go of the memory; nothing may be read or written afterwards."""
        self.pieces.clear()
        self.slots.clear()
        if self.memory is not None:
            self.memory.close()


def blocks_that_fit(layout: KVLayout, capacity_bytes: int) -> int:
    """How many blocks `capacity_bytes` holds; `ConfigError` if not one."""
    per_block = layout.block_bytes
    if capacity_bytes < per_block:
        raise ConfigError(
            f"kv-cache.capacity-bytes is {capacity_bytes}; one block of this model takes "
            f"{per_block}"
        )
    return capacity_bytes // per_block
