"""What waits for the end of a turn is neither lost, nor late, nor out of order."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.gateway.outbox import LARGE_BYTES, Outbox

PIECES = st.lists(st.one_of(st.binary(max_size=50), st.just(b"x" * (LARGE_BYTES + 1))), max_size=12)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """A transport and the socket at its other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        try:
            yield transport, theirs
        finally:
            transport.abort()


async def received(peer: socket.socket) -> bytes:
    """All that came until the connection ended."""
    data = bytearray()
    while piece := await asyncio.get_running_loop().sock_recv(peer, 65536):
        data += piece
    return bytes(data)


@given(first=PIECES, second=PIECES)
def test_each_peer_gets_its_pieces_in_order_and_the_end_behind_them(
    first: list[bytes], second: list[bytes]
) -> None:
    async def scene() -> None:
        outbox = Outbox()
        async with connected() as (one, peer_one), connected() as (two, peer_two):
            for number in range(max(len(first), len(second))):
                for transport, pieces in ((one, first), (two, second)):
                    for piece in pieces[number : number + 1]:
                        outbox.write(transport, piece)
            outbox.close(one)
            outbox.close(two)
            got = await asyncio.gather(received(peer_one), received(peer_two))
            assert list(got) == [b"".join(first), b"".join(second)]

    asyncio.run(scene())


async def test_little_waits_for_the_end_of_the_turn_and_much_does_not() -> None:
    outbox = Outbox()
    async with connected() as (transport, peer):
        outbox.write(transport, b"little")
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        await asyncio.sleep(0)
        assert await asyncio.get_running_loop().sock_recv(peer, 100) == b"little"
        outbox.write(transport, b"m" * (LARGE_BYTES + 1))
        assert len(peer.recv(100)) == 100, "it is on its way before the turn ends"


async def test_what_is_written_to_a_lost_connection_is_dropped_and_delays_nobody() -> None:
    outbox = Outbox()
    async with connected() as (lost, _), connected() as (alive, peer):
        outbox.write(lost, b"nobody reads this")
        outbox.write(alive, b"somebody reads this")
        lost.abort()
        assert await asyncio.get_running_loop().sock_recv(peer, 100) == b"somebody reads this"
