"""Between hosts and GPUs: NVIDIA's NIXL, over UCX.

The pool is registered once. A pull is one batch of descriptors, read by the network card (or, on
one host, by UCX) without the owner's doing anything. NIXL reports no completion by itself, so a
thread asks; it asks more rarely the longer a pull takes.
"""

import importlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from expediter.errors import TransferError
from expediter.transfer.copy_plan import Slice, check_within, expand
from expediter.transfer.layout import KVLayout
from expediter.transfer.threads import run_to_end
from expediter.transfer.transport import KVHandle, KVPeer, NixlHandle

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_POLL_SECONDS = 50e-6
MAX_POLL_SECONDS = 2e-3
PULL_SECONDS = 60.0
ABANDON_SECONDS = 10.0
BACKEND = "UCX"
HOST_MEMORY = "DRAM"


class NixlPeer:
    """Another worker's pool. NIXL knows a worker once, however many peers of it there are here."""

    def __init__(self, handle: NixlHandle, agent: Any, num_peers: Counter[str]) -> None:
        """`num_peers` counts those of each agent, for all that share our agent."""
        self.layout = handle.layout
        self.handle = handle
        self.name: str | None = None
        self._agent = agent
        self._num_peers = num_peers

    def connect(self) -> None:
        """Make it known to our agent, if it is not; TransferError if that cannot be."""
        if self.name is not None and self._agent.check_remote_metadata(self.name):
            return
        try:
            name: str = self._agent.add_remote_agent(self.handle.metadata).decode()
        except Exception as error:  # NIXL's have only this in common
            raise TransferError(f"NIXL cannot reach the other worker: {error}") from error
        if self.name is None:
            self.name = name
            self._num_peers[name] += 1

    def disconnect(self) -> None:
        """Nothing more arrives from it, until somebody connects again."""
        with suppress(Exception):  # it is gone already
            self._agent.remove_remote_agent(self.name)

    def close(self) -> None:
        """Forget it, if it is the last of its agent."""
        if self.name is not None:
            self._num_peers[self.name] -= 1
            if not self._num_peers[self.name]:
                self.disconnect()
            self.name = None


class NixlTransport:
    """See `KVTransport`. For a pool at an address, in host memory or (as VRAM) on a GPU."""

    def __init__(
        self, address: int, layout: KVLayout, *, memory: str = HOST_MEMORY, device: int = 0
    ) -> None:
        """Registers the pool; TransferError if NIXL is not installed or does not work here."""
        self.layout = layout
        self._address = address
        self._memory = memory
        self._device = device
        self._agent = _agent()
        self._num_peers: Counter[str] = Counter()
        try:
            self._registered = self._agent.register_memory(
                [(address, layout.num_bytes, device, "")], memory
            )
            self._metadata: bytes = self._agent.get_agent_metadata()
        except Exception as error:
            raise TransferError(f"NIXL cannot register the pool: {error}") from error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-nixl")
        self._is_closed = False

    def describe(self) -> NixlHandle:
        """See `KVTransport`."""
        return NixlHandle(
            layout=self.layout,
            metadata=self._metadata,
            address=self._address,
            memory=self._memory,
            device=self._device,
        )

    def can_reach(self, handle: KVHandle) -> bool:
        """See `KVTransport`."""
        return isinstance(handle, NixlHandle)

    async def connect(self, handle: KVHandle) -> NixlPeer:
        """See `KVTransport`."""
        if not isinstance(handle, NixlHandle):
            raise TransferError(f"NIXL cannot read {handle}")
        peer = NixlPeer(handle, self._agent, self._num_peers)
        await run_to_end(self._thread, peer.connect)
        return peer

    async def pull(self, peer: KVPeer, slices: Sequence[Slice]) -> None:
        """See `KVTransport`. When cancelled, or after a minute, the peer is disconnected."""
        assert isinstance(peer, NixlPeer), "a peer of another transport"
        check_within(slices, source=peer.layout.num_bytes, target=self.layout.num_bytes)
        if not slices:
            return
        stop = threading.Event()
        await run_to_end(self._thread, lambda: self._read(peer, slices, stop), interrupt=stop.set)

    async def close(self) -> None:
        """See `KVTransport`."""
        if not self._is_closed:
            self._is_closed = True
            await run_to_end(self._thread, lambda: self._agent.deregister_memory(self._registered))
            self._thread.shutdown()

    def _read(self, peer: NixlPeer, slices: Sequence[Slice], stop: threading.Event) -> None:
        """One batch, from posting it until nothing of it is under way; blocks."""
        peer.connect()
        runs = expand(slices)
        theirs = _descriptors(peer.handle.address, runs[:, 0], runs[:, 2], peer.handle.device)
        ours = _descriptors(self._address, runs[:, 1], runs[:, 2], self._device)
        agent = self._agent
        try:
            batch = agent.initialize_xfer(
                "READ",
                agent.get_xfer_descs(ours, self._memory),
                agent.get_xfer_descs(theirs, peer.handle.memory),
                peer.name,
            )
        except Exception as error:
            raise TransferError(f"NIXL does not take the transfer: {error}") from error
        try:
            self._finish(batch, stop)
        except BaseException:
            self._abandon(batch, peer)
            raise
        agent.release_xfer_handle(batch)

    def _finish(self, batch: Any, stop: threading.Event) -> None:
        """Post a batch and wait for its end; TransferError if that is none, or is not awaited."""
        deadline = time.monotonic() + PULL_SECONDS
        pause = MIN_POLL_SECONDS
        try:
            state = self._agent.transfer(batch)
            while state == "PROC":
                if stop.wait(pause):
                    raise TransferError("the pull was cancelled")
                if time.monotonic() > deadline:
                    raise TransferError(f"NIXL was not done in {PULL_SECONDS} s")
                pause = min(pause * 1.5, MAX_POLL_SECONDS)
                state = self._agent.check_xfer_state(batch)
        except TransferError:
            raise
        except Exception as error:
            raise TransferError(f"NIXL failed: {error}") from error
        if state != "DONE":
            raise TransferError("NIXL says that the transfer failed")

    def _abandon(self, batch: Any, peer: NixlPeer) -> None:
        """Disconnect, so that nothing more arrives, and wait until what was under way has ended."""
        peer.disconnect()
        deadline = time.monotonic() + ABANDON_SECONDS
        with suppress(Exception):  # NIXL's own: its state says that it has ended
            while self._agent.check_xfer_state(batch) == "PROC" and time.monotonic() < deadline:
                time.sleep(MAX_POLL_SECONDS)
        with suppress(Exception):
            self._agent.release_xfer_handle(batch)


def _agent() -> Any:
    """An agent with UCX; TransferError if there is no NIXL."""
    try:
        api = importlib.import_module("nixl._api")
    except ImportError as error:
        raise TransferError(f"NIXL is not installed: {error}") from error
    try:
        settings = api.nixl_agent_config(
            backends=[BACKEND], sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        )
        agent = api.nixl_agent(f"expediter-{secrets.token_hex(8)}", settings)
    except Exception as error:
        raise TransferError(f"NIXL does not work here: {error}") from error
    if BACKEND not in agent.backends:
        raise TransferError(f"NIXL has no {BACKEND} here")
    return agent


def _descriptors(
    address: int, offsets: "NDArray[np.int64]", lengths: "NDArray[np.int64]", device: int
) -> "NDArray[np.uint64]":
    """Address, length, device: a row for each run."""
    rows = np.empty((len(offsets), 3), np.uint64)
    rows[:, 0] = offsets + address
    rows[:, 1] = lengths
    rows[:, 2] = device
    return rows
