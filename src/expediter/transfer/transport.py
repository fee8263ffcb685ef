"""How bytes get from one pool to another: by pulling.

A transport registers its worker's pool once. It describes the pool in a handle that can be sent,
connects to the pool behind another's handle, and copies slices of it into its own. The worker
whose bytes are read does nothing, so a pull neither waits for it nor slows it down; that the bytes
are still what they were is the lease's business.
"""

import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from expediter.transfer.copy_plan import Slice
from expediter.transfer.layout import KVLayout


class SharedMemoryHandle(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="transport", tag="shared-memory"
):
    """A pool that processes of the same user on the same host can map."""

    layout: KVLayout
    host_id: str
    path: str


class TcpHandle(msgspec.Struct, frozen=True, kw_only=True, tag_field="transport", tag="tcp"):
    """A pool whose owner sends what is asked for, to whoever knows the secret."""

    layout: KVLayout
    host: str
    port: int
    secret: bytes


class NixlHandle(msgspec.Struct, frozen=True, kw_only=True, tag_field="transport", tag="nixl"):
    """A pool registered with NIXL, in host memory or a GPU's."""

    layout: KVLayout
    metadata: bytes
    address: int
    memory: str  # NIXL's word: DRAM or VRAM
    device: int = 0


KVHandle = SharedMemoryHandle | TcpHandle | NixlHandle


class KVPeer(Protocol):
    """A connection to another worker's pool."""

    @property
    def layout(self) -> KVLayout:
        """How that pool is arranged."""
        ...

    def close(self) -> None:
        """Let go of it; no pull from it may be under way. May be called twice."""
        ...


class KVTransport(Protocol):
    """One worker's way to read other workers' pools into its own."""

    @property
    def layout(self) -> KVLayout:
        """How our pool is arranged."""
        ...

    def describe(self) -> KVHandle:
        """How others reach our pool."""
        ...

    def can_reach(self, handle: KVHandle) -> bool:
        """Whether `connect` makes sense: the same kind of transport and, if need be, host."""
        ...

    async def connect(self, handle: KVHandle) -> KVPeer:
        """A connection, to be kept; TransferError if the pool cannot be reached."""
        ...

    async def pull(self, peer: KVPeer, slices: Sequence[Slice]) -> None:
        """Copy the slices into our pool; TransferError if it cannot be done.

        Returns or raises only when nothing is being written any more, even when it is cancelled.
        """
        ...

    async def close(self) -> None:
        """Serve and read no more."""
        ...


@cache
def host_id() -> str:
    """The same for processes that can map each other's memory: one kernel, one PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return socket.gethostname()
    return f"{boot}/{namespace}"
