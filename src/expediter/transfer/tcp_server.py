"""The side of TCP whose pool is read: a thread for each connection, none of it the event loop's.

The interpreter's lock is released while bytes are sent, and while scattered ones are gathered.
"""

import hmac
import logging
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from expediter.errors import TransferError
from expediter.transfer.copy_plan import Slice
from expediter.transfer.memory import PoolMemory
from expediter.transfer.strided import at_source
from expediter.transfer.tcp_wire import (
    LENGTH_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    REFUSED,
    STAGE_BYTES,
    TOTAL_BYTES,
    WELCOME,
    check_request_length,
    decode_request,
    parts,
    proof,
    receive,
    send,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

GREETING_SECONDS = 5.0
RETRY_SECONDS = 0.1
MAX_CONNECTIONS = 256


class TcpPoolServer:
    """Sends the bytes of one pool to whoever knows `secret`, until it is closed."""

    def __init__(self, memory: PoolMemory, *, num_bytes: int, host: str, io_seconds: float) -> None:
        """Listens at once; OSError if that is impossible at `host`."""
        self.secret = secrets.token_bytes(32)
        self._memory = memory
        self._num_bytes = num_bytes
        self._io_seconds = io_seconds
        self._lock = threading.Lock()
        self._is_closed = False
        self._connections: dict[socket.socket, threading.Thread] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=64)
        self._accepting = threading.Thread(target=self._accept, name="kv-tcp", daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Hang up on everybody; blocks until no thread touches the pool. May be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            connections = dict(self._connections)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for sock in connections:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for thread in connections.values():
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                logger.warning("a connection that would read KV is not taken: %s", error)
                time.sleep(RETRY_SECONDS)  # out of files, mostly
                continue
            if not self._admit(sock):
                sock.close()

    def _admit(self, sock: socket.socket) -> bool:
        thread = threading.Thread(target=self._serve, args=(sock,), name="kv-tcp", daemon=True)
        with self._lock:
            if self._is_closed or len(self._connections) >= MAX_CONNECTIONS:
                return False
            self._connections[sock] = thread
            thread.start()
        return True

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                self._greet(sock)
                stage = np.empty(STAGE_BYTES, np.uint8)
                while True:
                    self._answer(sock, stage)
        except ConnectionError:
            pass  # it hung up, as everybody does in the end
        except (OSError, TransferError) as error:
            logger.warning("a connection that reads KV is closed: %s", error)
        finally:
            with self._lock:
                del self._connections[sock]

    def _greet(self, sock: socket.socket) -> None:
        sock.settimeout(GREETING_SECONDS)
        nonce = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(nonce)
        if not hmac.compare_digest(receive(sock, PROOF_BYTES), proof(self.secret, nonce)):
            raise TransferError("it does not know the secret")
        sock.sendall(WELCOME)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _answer(self, sock: socket.socket, stage: "NDArray[np.uint8]") -> None:
        sock.settimeout(None)  # a reader may have nothing to read for long
        length = int.from_bytes(receive(sock, LENGTH_BYTES), "big")
        sock.settimeout(self._io_seconds)
        check_request_length(length)
        try:
            slices = decode_request(receive(sock, length), num_bytes=self._num_bytes)
        except TransferError as error:
            reason = str(error).encode()[:1000]
            head = REFUSED.to_bytes(TOTAL_BYTES, "big") + len(reason).to_bytes(LENGTH_BYTES, "big")
            sock.sendall(head + reason)
            return
        total = sum(piece.total_bytes for piece in slices)
        sock.sendall(total.to_bytes(TOTAL_BYTES, "big"))
        for piece in parts(slices):
            send(sock, self._bytes(piece, stage))

    def _bytes(self, piece: Slice, stage: "NDArray[np.uint8]") -> memoryview:
        """A slice's bytes: a run where it lies, several gathered in the stage."""
        view = at_source(self._memory.array, piece)
        if not piece.axes:
            return view.data
        gathered = stage[: piece.total_bytes]
        gathered.reshape(view.shape)[...] = view
        return gathered.data
