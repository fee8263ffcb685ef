"""A worker as a process that computes nothing: it answers at once, as the body asks it to.

Its first line is its port. What a body says, besides a prompt:

    "stream": true       twenty events, one a pass of the event loop
    "fate": "late"       the usual answer, after two seconds
    "fate": "flood"      a stream of 48 MiB
    "fate": "refuse"     400
    "fate": "limit"      429
    "fate": "break"      three events, and the connection breaks
    "fate": "die"        the process is gone
    "fate": "hang"       nothing, ever
"""

import asyncio
import os
import sys
from collections.abc import Callable

import uvloop

HEAD = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n%b\r\n\r\n"
JSON, EVENTS = b"application/json", b"text/event-stream"
EVENT = b'data: {"choices":[{"index":0,"text":"word ","finish_reason":null}]}\n\n'
USAGE = (
    b'{"choices":[{"index":0,"text":"word"}],"usage":{"prompt_tokens":500,"completion_tokens":1,'
    b'"prompt_tokens_details":{"cached_tokens":%d}}}'
)
NUM_EVENTS = 20
LATE_SECONDS = 2.0
PIECE = EVENT * 500
FLOOD_BYTES = 48 * 2**20
ERRORS = {b'"refuse"': 400, b'"limit"': 429}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, status: int = 200) -> bytes:
    return HEAD % (status, JSON, b"content-length: %d" % len(body)) + body


class Connection(asyncio.Protocol):
    """One request after the other; the body decides what becomes of it."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._is_writable = True
        self._goes_on: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        _, _, length = head.lower().partition(b"content-length: ")
        size = end + 4 + (int(length.split(b"\r\n")[0]) if length else 0)
        if len(self._buffer) >= size:
            body = bytes(self._buffer[end + 4 : size])
            del self._buffer[:size]
            self._answer(head, body)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        if self._goes_on is not None:
            self._goes_on()

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/health":
            self.transport.write(whole(b"{}"))
        elif not body:
            self.transport.write(whole(b"{}", 404))
        elif b'"fate"' in body:
            self._end_badly(body)
        elif b'"stream": true' in body:
            self._begin_stream(lambda: self._stream(NUM_EVENTS))
        else:
            self.transport.write(whole(USAGE % 0))

    def _end_badly(self, body: bytes) -> None:
        fate = body.partition(b'"fate": ')[2][:8]
        for name, status in ERRORS.items():
            if fate.startswith(name):
                self.transport.write(whole(b'{"error":{"message":"no"}}', status))
        if fate.startswith(b'"late"'):
            self._loop.call_later(LATE_SECONDS, self.transport.write, whole(USAGE % 0))
        elif fate.startswith(b'"flood"'):
            self._begin_stream(lambda: self._flood(FLOOD_BYTES // len(PIECE)))
        elif fate.startswith(b'"break"'):
            self._begin_stream(self._break)
        elif fate.startswith(b'"die"'):
            os._exit(1)

    def _begin_stream(self, then: Callable[[], None]) -> None:
        self.transport.write(HEAD % (200, EVENTS, b"transfer-encoding: chunked"))
        then()

    def _stream(self, num_left: int) -> None:
        if self.transport.is_closing():
            return
        if not num_left:
            self.transport.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            return
        self.transport.write(chunk(EVENT))
        self._loop.call_soon(self._stream, num_left - 1)

    def _flood(self, num_left: int) -> None:
        """As fast as it is read."""
        self._goes_on = None
        while num_left and self._is_writable and not self.transport.is_closing():
            self.transport.write(chunk(PIECE))
            num_left -= 1
        if num_left:
            self._goes_on = lambda: self._flood(num_left)
        else:
            self.transport.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def _break(self) -> None:
        self.transport.write(chunk(EVENT) * 3)
        self.transport.close()


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
