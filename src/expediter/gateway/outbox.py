"""Little pieces that are written in one turn of the event loop go out together, at its end.

A send wakes whoever reads the socket, and to wake a sleeping process is most of what a small one
costs. Sent one by one between requests, each finds its reader asleep again; sent in a row, the
first wakes it and the rest find it at work. Under load that is a third of the kernel's part of a
request; when there is little to do a turn is one request, and nothing waits for anything.

A large piece goes out at once, behind those before it: a fast worker may bring megabytes in one
turn, and it has to be held back as soon as its client does not keep up.
"""

import asyncio

LARGE_BYTES = 16 * 1024


class Outbox:
    """Bytes that are about to be written, of all connections of one event loop, in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send this, unless the connection is lost before the turn ends: nobody would read it."""
        waiting = self._waiting
        if not waiting:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self.flush)
        waiting.append((transport, data))
        if len(data) > LARGE_BYTES:
            self.flush()

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
