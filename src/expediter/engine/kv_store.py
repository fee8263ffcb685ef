"""Where keys and values live: one flat pool of blocks, every (layer, K or V, head) its own run.

Axes, outermost first: layer, key or value, KV head, block, slot, head element. Two facts
follow. One head of one block is contiguous (block_size x head_size elements), so another
process can copy it with one call. And a whole layer is one matrix whose rows are such pieces,
so collecting a request's keys and values is one `index_select`.

On CPU the pool is a memfd: anonymous memory that other processes of the user may map through
/proc, that is zero and unallocated until written, and that the kernel frees when the last
holder closes it or dies. Nothing has a name, so nothing is left behind.
"""

import mmap
import os
from dataclasses import dataclass, replace

import torch

from expediter.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """How a pool's bytes are arranged; enough for another process to find any block in it."""

    num_layers: int
    num_kv_heads: int
    num_blocks: int
    block_size: int
    head_size: int
    dtype: str
    element_bytes: int
    path: str | None = None  # mappable by processes of the same user; None: not shared

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        """Layer, key or value, KV head, block, slot, element."""
        return (
            self.num_layers,
            2,
            self.num_kv_heads,
            self.num_blocks,
            self.block_size,
            self.head_size,
        )

    @property
    def piece_bytes(self) -> int:
        """Bytes of one head's keys (or values) in one block of one layer: contiguous."""
        return self.block_size * self.head_size * self.element_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers and heads, keys and values."""
        return self.num_layers * 2 * self.num_kv_heads * self.piece_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.block_bytes

    def offset(self, *, layer: int, kv: int, head: int, block: int) -> int:
        """Where a piece starts, in bytes; `kv` is 0 for keys and 1 for values."""
        run = (layer * 2 + kv) * self.num_kv_heads + head
        return (run * self.num_blocks + block) * self.piece_bytes


class KVStore:
    """The pool, as each layer's attention wants it: rows to gather, slots to write."""

    def __init__(self, layout: KVLayout, *, dtype: torch.dtype, device: torch.device) -> None:
        self._fd: int | None = None
        self.layout = layout
        if device.type == "cpu" and hasattr(os, "memfd_create"):
            pool = self._shared_pool(dtype)
        else:
            pool = torch.zeros(layout.num_bytes // layout.element_bytes, dtype=dtype, device=device)
        runs = 2 * layout.num_kv_heads * layout.num_blocks
        self.pieces = list(pool.view(layout.num_layers, runs, -1))
        self.slots = list(pool.view(layout.num_layers, runs * layout.block_size, -1))

    def _shared_pool(self, dtype: torch.dtype) -> torch.Tensor:
        self._fd = os.memfd_create("expediter-kv", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, self.layout.num_bytes)
        self.layout = replace(self.layout, path=f"/proc/{os.getpid()}/fd/{self._fd}")
        # The tensors keep the mapping alive, and it goes with the last of them.
        return torch.frombuffer(mmap.mmap(self._fd, self.layout.num_bytes), dtype=dtype)

    def close(self) -> None:
        """Let go of the memory; nothing may be read or written afterwards."""
        self.pieces.clear()
        self.slots.clear()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def blocks_that_fit(layout: KVLayout, capacity_bytes: int) -> int:
    """How many blocks `capacity_bytes` holds; `ConfigError` if not one."""
    per_block = layout.block_bytes
    if capacity_bytes < per_block:
        raise ConfigError(
            f"kv-cache.capacity-bytes is {capacity_bytes}; one block of this model takes "
            f"{per_block}"
        )
    return capacity_bytes // per_block
