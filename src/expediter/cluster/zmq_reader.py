"""A ZeroMQ socket read by callback on the event loop.

ZeroMQ's descriptor signals a change, not a state: whoever is woken must read until nothing is
left. A long backlog is read in slices so that it does not hold up everything else.
"""

import asyncio
from collections.abc import Callable

import zmq

MAX_MESSAGES_AT_ONCE = 64

OnMessage = Callable[[list[bytes]], None]


class ZmqReader:
    """Calls `on_message` for each message of a socket it owns, until closed."""

    def __init__(self, socket: "zmq.Socket[bytes]", on_message: OnMessage) -> None:
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._fd: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._loop.add_reader(self._fd, self._read)
        self._loop.call_soon(self._read)  # what came before the descriptor was watched

    def send(self, frames: list[bytes]) -> None:
        """Send a message; raises zmq.Again if it would have to wait."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        self._loop.call_soon(self._read)  # sending may swallow the signal of an arrival

    def close(self) -> None:
        """Read no more; messages not read yet are dropped."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=0)

    def _read(self) -> None:
        for _ in range(MAX_MESSAGES_AT_ONCE):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(frames)
        self._loop.call_soon(self._read)
