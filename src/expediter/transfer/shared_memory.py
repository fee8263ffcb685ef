"""Between processes of one host: the peer's pool is mapped, and a pull is a copy.

A slice is one strided view on each side and one assignment between them, which runs in C without
the interpreter's lock. Copies run in a thread of the transport's own, so the event loop goes on. A
large pull is shared with a second thread where there is a processor for it: short runs are bound by
the time memory takes to answer, and two threads wait for two answers.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from expediter.errors import TransferError
from expediter.transfer.copy_plan import Slice, check_within
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory
from expediter.transfer.strided import at_source, at_target, halves
from expediter.transfer.threads import run_to_end
from expediter.transfer.transport import KVHandle, KVPeer, SharedMemoryHandle, host_id

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_SHARED_BYTES = 8 * 1024 * 1024  # of a pull that is worth waking a second thread


class SharedMemoryPeer:
    """Another process's pool, mapped."""

    def __init__(self, handle: SharedMemoryHandle) -> None:
        """Raises TransferError if it cannot be mapped."""
        self.layout = handle.layout
        self.memory = PoolMemory.open(handle.path, handle.layout.num_bytes)

    def close(self) -> None:
        """Unmap it."""
        self.memory.close()


class SharedMemoryTransport:
    """See `KVTransport`. The memory stays its owner's."""

    def __init__(self, memory: PoolMemory, layout: KVLayout) -> None:
        self.layout = layout
        self._memory = memory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-copy")
        self._second = ThreadPoolExecutor(1, thread_name_prefix="kv-copy-second")

    def describe(self) -> SharedMemoryHandle:
        """See `KVTransport`."""
        return SharedMemoryHandle(layout=self.layout, host_id=host_id(), path=self._memory.path)

    def can_reach(self, handle: KVHandle) -> bool:
        """See `KVTransport`."""
        return isinstance(handle, SharedMemoryHandle) and handle.host_id == host_id()

    async def connect(self, handle: KVHandle) -> SharedMemoryPeer:
        """See `KVTransport`."""
        if not isinstance(handle, SharedMemoryHandle):
            raise TransferError(f"shared memory cannot read {handle}")
        return SharedMemoryPeer(handle)

    async def pull(self, peer: KVPeer, slices: Sequence[Slice]) -> None:
        """See `KVTransport`."""
        assert isinstance(peer, SharedMemoryPeer), "a peer of another transport"
        check_within(slices, source=peer.layout.num_bytes, target=self.layout.num_bytes)
        source, target = peer.memory.array, self._memory.array
        await run_to_end(self._thread, lambda: self._copy(source, target, slices))

    async def close(self) -> None:
        """See `KVTransport`."""
        await asyncio.to_thread(self._thread.shutdown)
        self._second.shutdown()

    def _copy(
        self, source: "NDArray[np.uint8]", target: "NDArray[np.uint8]", slices: Sequence[Slice]
    ) -> None:
        """`copy`, by two threads if that pays."""
        is_large = sum(piece.total_bytes for piece in slices) >= MIN_SHARED_BYTES
        if not is_large or len(os.sched_getaffinity(0)) == 1:
            copy(source, target, slices)
            return
        ours, others = halves(slices)
        second = self._second.submit(copy, source, target, others)
        try:
            copy(source, target, ours)
        finally:
            second.result()


def copy(source: "NDArray[np.uint8]", target: "NDArray[np.uint8]", slices: Sequence[Slice]) -> None:
    """Copy every slice from one flat array of bytes to another; all must lie within."""
    for piece in slices:
        at_target(target, piece)[...] = at_source(source, piece)
