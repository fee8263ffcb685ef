"""Between hosts with nothing but TCP: the owner sends what is asked for, into the reader's pool.

A run of bytes goes from pool to pool with no copy but the kernel's; what is scattered goes
through a small buffer on each side. A pull that breaks off leaves the connection closed, and the
next one connects anew. See tcp_wire.py for what is said.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from expediter.errors import TransferError
from expediter.transfer.copy_plan import Slice, check_within
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory
from expediter.transfer.strided import at_target
from expediter.transfer.tcp_server import TcpPoolServer
from expediter.transfer.tcp_wire import (
    LENGTH_BYTES,
    NONCE_BYTES,
    REFUSED,
    STAGE_BYTES,
    TOTAL_BYTES,
    WELCOME,
    encode_request,
    parts,
    proof,
    receive,
    receive_exactly,
)
from expediter.transfer.threads import run_to_end
from expediter.transfer.transport import KVHandle, KVPeer, TcpHandle

CONNECT_SECONDS = 5.0
IO_SECONDS = 15.0  # without a single byte


class TcpPeer:
    """Another host's pool: one connection, and one thread that uses it."""

    def __init__(self, handle: TcpHandle, *, io_seconds: float) -> None:
        self.layout = handle.layout
        self._handle = handle
        self._io_seconds = io_seconds
        self._socket: socket.socket | None = None
        self._is_interrupted = False
        self._stage = np.empty(STAGE_BYTES, np.uint8)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-tcp-read")

    async def run(self, work: Callable[[], None]) -> None:
        """Do it in the peer's thread. When cancelled, hang up, and wait until it has ended."""
        self._is_interrupted = False
        await run_to_end(self._thread, work, interrupt=self._interrupt)

    def open(self) -> None:
        """Connect and prove that we know the secret, unless that is done; TransferError."""
        if self._socket is not None:
            return
        where = f"{self._handle.host}:{self._handle.port}"
        try:
            sock = socket.create_connection((self._handle.host, self._handle.port), CONNECT_SECONDS)
        except OSError as error:
            raise TransferError(f"the pool at {where} cannot be reached: {error}") from error
        try:
            sock.sendall(proof(self._handle.secret, receive(sock, NONCE_BYTES)))
            receive(sock, len(WELCOME))
        except OSError as error:
            sock.close()
            raise TransferError(f"the pool at {where} does not let us in: {error}") from error
        sock.settimeout(self._io_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock

    def read(self, slices: Sequence[Slice], memory: PoolMemory) -> None:
        """Fill the slices; blocks. After a failure (TransferError) it is closed."""
        self.open()
        sock = self._socket
        assert sock is not None
        is_done = False
        try:
            if self._is_interrupted:  # before there was a connection to shut down
                raise TransferError("the pull was cancelled")
            sock.sendall(encode_request(slices))
            self._check_total(sock, sum(piece.total_bytes for piece in slices))
            for piece in parts(slices):
                self._receive(sock, piece, memory)
            is_done = True
        except OSError as error:
            raise TransferError(f"the other worker's KV stopped coming: {error}") from error
        finally:
            if not is_done:
                self._hang_up()

    def close(self) -> None:
        """Hang up."""
        self._hang_up()
        self._thread.shutdown(wait=False)

    def _interrupt(self) -> None:
        self._is_interrupted = True
        if (sock := self._socket) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _check_total(self, sock: socket.socket, expected: int) -> None:
        total = int.from_bytes(receive(sock, TOTAL_BYTES), "big")
        if total == REFUSED:
            length = int.from_bytes(receive(sock, LENGTH_BYTES), "big")
            reason = receive(sock, min(length, STAGE_BYTES)).decode(errors="replace")
            raise TransferError(f"the other worker refuses: {reason}")
        if total != expected:
            raise TransferError(f"{total} bytes are sent, {expected} were asked for")

    def _receive(self, sock: socket.socket, piece: Slice, memory: PoolMemory) -> None:
        """A run goes where it belongs at once, several are scattered from the stage."""
        view = at_target(memory.array, piece)
        if not piece.axes:
            receive_exactly(sock, view.data)
            return
        stage = self._stage[: piece.total_bytes]
        receive_exactly(sock, stage.data)
        view[...] = stage.reshape(view.shape)


class TcpTransport:
    """See `KVTransport`. Listens from the start; the memory stays its owner's."""

    def __init__(
        self, memory: PoolMemory, layout: KVLayout, *, host: str, io_seconds: float = IO_SECONDS
    ) -> None:
        """`host` is an address of ours that others can reach; OSError if it is not ours."""
        self.layout = layout
        self._memory = memory
        self._host = host
        self._io_seconds = io_seconds
        self._server = TcpPoolServer(
            memory, num_bytes=layout.num_bytes, host=host, io_seconds=io_seconds
        )

    def describe(self) -> TcpHandle:
        """See `KVTransport`."""
        return TcpHandle(
            layout=self.layout,
            host=self._host,
            port=self._server.port,
            secret=self._server.secret,
        )

    def can_reach(self, handle: KVHandle) -> bool:
        """See `KVTransport`."""
        return isinstance(handle, TcpHandle)

    async def connect(self, handle: KVHandle) -> TcpPeer:
        """See `KVTransport`."""
        if not isinstance(handle, TcpHandle):
            raise TransferError(f"TCP cannot read {handle}")
        peer = TcpPeer(handle, io_seconds=self._io_seconds)
        try:
            await peer.run(peer.open)
        except BaseException:
            peer.close()
            raise
        return peer

    async def pull(self, peer: KVPeer, slices: Sequence[Slice]) -> None:
        """See `KVTransport`. When cancelled, it hangs up and waits only until that is noticed."""
        assert isinstance(peer, TcpPeer), "a peer of another transport"
        check_within(slices, source=peer.layout.num_bytes, target=self.layout.num_bytes)
        if slices:
            await peer.run(lambda: peer.read(slices, self._memory))

    async def close(self) -> None:
        """See `KVTransport`."""
        await asyncio.to_thread(self._server.close)
