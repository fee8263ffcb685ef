"""While there is much to do, little pieces go out together at the end of a turn of the event loop.

A send wakes whoever reads the socket, and to wake a sleeping process is most of what a small one
costs. Sent one by one between requests, each finds its reader asleep again; sent in a row, the
first wakes it and the rest find it at work. Under load that is a third of the kernel's part of a
request. While there is little to do, pieces go out at once, and nothing waits for anything.

A large piece goes out at once too, behind those before it: a fast worker may bring megabytes in
one turn, and it has to be held back as soon as its client does not keep up.
"""

import asyncio
import time

from expediter.clock import Clock

LARGE_BYTES = 16 * 1024
NUM_COUNTED = 32
BUSY_SECONDS = 0.002
"""So many pieces in this time are much to do."""


class Outbox:
    """Bytes that are about to be written, of all connections of one event loop, in order."""

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._num_counted = 0  # pieces since
        self._counted_at = 0.0
        self.is_busy = False

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send this, unless the connection is lost before: nobody would read it."""
        waiting = self._waiting
        if waiting or (self.is_busy and len(data) <= LARGE_BYTES):
            if not waiting:
                self._flush_at_end()
            waiting.append((transport, data))
            if len(data) > LARGE_BYTES:
                self.flush()
            return
        if not transport.is_closing():
            transport.write(data)
        self._count(1)

    def close(self, transport: asyncio.Transport) -> None:
        """Close a connection behind what was written to it."""
        self.flush()
        transport.close()

    def flush(self) -> None:
        """Send everything now."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)
        self._count(len(waiting))

    def _count(self, num_pieces: int) -> None:
        num_counted = self._num_counted = self._num_counted + num_pieces
        if num_counted >= NUM_COUNTED:
            now = self._clock()
            seconds = now - self._counted_at
            self.is_busy = seconds * NUM_COUNTED < BUSY_SECONDS * num_counted
            self._num_counted, self._counted_at = 0, now

    def _flush_at_end(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # asked for once: it is a system call
        self._loop.call_soon(self.flush)
