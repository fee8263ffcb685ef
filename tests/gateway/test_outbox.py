"""What waits for the end of a turn is neither lost, nor late, nor out of order."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.gateway.outbox import (
    BUSY_SECONDS,
    LARGE_BYTES,
    NUM_COUNTED,
    Outbox,
)

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


def busy(transport: asyncio.Transport, peer: socket.socket) -> Outbox:
    """An outbox that had much to do in no time; its pieces have been read."""
    outbox = Outbox(clock=lambda: 0.0)
    for _ in range(NUM_COUNTED):
        assert not outbox.is_busy
        outbox.write(transport, b"-")
    assert outbox.is_busy
    outbox.flush()
    assert len(peer.recv(1000)) == NUM_COUNTED
    return outbox


@given(first=PIECES, second=PIECES, is_busy=st.booleans())
def test_each_peer_gets_its_pieces_in_order_and_the_end_behind_them(
    first: list[bytes], second: list[bytes], *, is_busy: bool
) -> None:
    async def scene() -> None:
        async with connected() as (one, peer_one), connected() as (two, peer_two):
            outbox = busy(one, peer_one) if is_busy else Outbox()
            for number in range(max(len(first), len(second))):
                for transport, pieces in ((one, first), (two, second)):
                    for piece in pieces[number : number + 1]:
                        outbox.write(transport, piece)
            outbox.close(one)
            outbox.close(two)
            got = await asyncio.gather(received(peer_one), received(peer_two))
            assert list(got) == [b"".join(first), b"".join(second)]

    asyncio.run(scene())


async def test_while_it_is_busy_little_waits_for_the_end_of_the_turn_and_much_does_not() -> None:
    async with connected() as (transport, peer):
        outbox = busy(transport, peer)
        outbox.write(transport, b"little")
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        await asyncio.sleep(0)
        assert peer.recv(100) == b"little"
        outbox.write(transport, b"little")
        outbox.write(transport, b"m" * (LARGE_BYTES + 1))
        assert peer.recv(100).startswith(b"littlemmm")


async def test_it_is_busy_while_many_pieces_come_in_little_time() -> None:
    now = 0.0
    outbox = Outbox(clock=lambda: now)
    async with connected() as (transport, peer):
        for interval, is_busy in [(2, False), (0.5, True), (2, False)]:
            for _ in range(NUM_COUNTED):
                now += interval * BUSY_SECONDS / NUM_COUNTED
                outbox.write(transport, b"piece")
                await asyncio.sleep(0)  # the turn ends
            assert outbox.is_busy is is_busy
        outbox.write(transport, b"piece")
        assert peer.recv(10_000) == b"piece" * (3 * NUM_COUNTED + 1), "nothing waits any more"


async def test_what_is_written_to_a_lost_connection_is_dropped_and_delays_nobody() -> None:
    async with connected() as (lost, peer_lost), connected() as (alive, peer):
        outbox = busy(lost, peer_lost)
        outbox.write(lost, b"nobody reads this")
        outbox.write(alive, b"somebody reads this")
        lost.abort()
        await asyncio.sleep(0)
        assert peer.recv(100) == b"somebody reads this"
