"""The control channel: one long-lived TCP connection for each pair of workers.

The target connects, both say Hello, and from then on both send whenever they have something to
say. A connection is either good or gone: whatever is wrong with it closes it, and who uses it
learns so once.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from expediter.errors import TransferError
from expediter.transfer.messages import (
    LENGTH_BYTES,
    PROTOCOL,
    Hello,
    Message,
    check_length,
    decode,
    encode,
)

logger = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
MAX_UNSENT_BYTES = 16 * 1024 * 1024  # to a peer that does not read


class PeerConnection:
    """An open connection to another worker, which said `hello`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello
    ) -> None:
        self.hello = hello
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Never waits. To a peer that is gone, or reads nothing, it closes the connection."""
        if self._writer.is_closing():
            return
        self._writer.write(encode(message))
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            logger.warning("worker %s does not read what it is told", self.hello.engine_id)
            self._writer.transport.abort()

    async def messages(self) -> AsyncGenerator[Message]:
        """What the peer says, until it is gone; TransferError if that makes no sense."""
        while True:
            try:
                yield await _read(self._reader)
            except (OSError, asyncio.IncompleteReadError):
                return

    def close(self) -> None:
        """Hang up. May be called twice."""
        self._writer.close()


async def connect_peer(
    host: str, port: int, hello: Hello, *, seconds: float = HELLO_SECONDS
) -> PeerConnection:
    """Connect and exchange Hellos; TransferError if that fails or takes longer."""
    where = f"{host}:{port}"
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            return await _greet(reader, writer, hello)
    except TimeoutError as error:
        raise TransferError(f"the worker at {where} said nothing for {seconds} s") from error
    except (OSError, asyncio.IncompleteReadError) as error:
        raise TransferError(f"the worker at {where} cannot be reached: {error}") from error


async def serve_peers(
    host: str, port: int, hello: Hello, accept: Callable[[PeerConnection], None]
) -> asyncio.Server:
    """Listen; `accept` gets every connection whose Hello is good, and owns it from then on."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                connection = await _greet(reader, writer, hello)
        except (OSError, TransferError, asyncio.IncompleteReadError) as error:
            logger.warning("a connection to the transfer port is refused: %s", error)
            return
        accept(connection)

    return await asyncio.start_server(greet, host, port)


async def _greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello
) -> PeerConnection:
    """Both Hellos; on any failure the connection is closed."""
    try:
        writer.write(encode(hello))
        theirs = await _read(reader)
        if not isinstance(theirs, Hello) or theirs.protocol != PROTOCOL:
            raise TransferError(f"the other side does not speak version {PROTOCOL} of our protocol")
    except BaseException:
        writer.close()
        raise
    return PeerConnection(reader, writer, theirs)


async def _read(reader: asyncio.StreamReader) -> Message:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    check_length(length)
    return decode(await reader.readexactly(length))
