"""Which transports a worker has, and which of them reads a given peer."""

import logging
from collections.abc import Sequence
from enum import StrEnum

from expediter.errors import TransferError
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory, can_be_shared
from expediter.transfer.nixl import NixlTransport
from expediter.transfer.shared_memory import SharedMemoryTransport
from expediter.transfer.tcp import TcpTransport
from expediter.transfer.transport import KVHandle, KVTransport

logger = logging.getLogger(__name__)


class TransportKind(StrEnum):
    """Ways to move KV."""

    SHARED_MEMORY = "shared-memory"
    NIXL = "nixl"
    TCP = "tcp"


DEFAULT_KINDS = (TransportKind.SHARED_MEMORY, TransportKind.NIXL, TransportKind.TCP)


def transports(
    memory: PoolMemory,
    layout: KVLayout,
    *,
    kinds: Sequence[str] = DEFAULT_KINDS,
    host: str = "127.0.0.1",
) -> list[KVTransport]:
    """Those of `kinds` that work here, in that order, which is the order of preference.

    `host` is an address of ours that others can reach. Raises ValueError for a kind that there is
    not, TransferError if none works. They must be closed.
    """
    made: list[KVTransport] = []
    for kind in map(TransportKind, kinds):
        try:
            made.append(_make(kind, memory, layout, host))
        except (TransferError, OSError) as error:
            logger.info("KV is not moved by %s here: %s", kind, error)
    if not made:
        raise TransferError(f"none of {', '.join(kinds)} can move KV here")
    return made


def choose(
    ours: Sequence[KVTransport], handles: Sequence[KVHandle]
) -> tuple[KVTransport, KVHandle] | None:
    """The first transport that can reach one of a peer's handles, and that one; None if none."""
    for transport in ours:
        for handle in handles:
            if transport.can_reach(handle):
                return transport, handle
    return None


def _make(kind: TransportKind, memory: PoolMemory, layout: KVLayout, host: str) -> KVTransport:
    match kind:
        case TransportKind.SHARED_MEMORY:
            if not can_be_shared():
                raise TransferError("this system has no memory that can be shared")
            return SharedMemoryTransport(memory, layout)
        case TransportKind.NIXL:
            return NixlTransport(memory.address, layout)
        case TransportKind.TCP:
            return TcpTransport(memory, layout, host=host)
