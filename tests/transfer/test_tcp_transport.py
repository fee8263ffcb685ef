"""TCP: who may read, what may be read, and connections that break or fall silent."""

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_owner import layout

from expediter.errors import LayoutMismatch, TransferError
from expediter.transfer.copy_plan import Axis, Slice, copy_plan, expand
from expediter.transfer.memory import PoolMemory
from expediter.transfer.strided import portions
from expediter.transfer.tcp import TcpPeer, TcpTransport
from expediter.transfer.tcp_wire import (
    LENGTH_BYTES,
    TOTAL_BYTES,
    WELCOME,
    decode_request,
    encode_request,
    receive,
)
from expediter.transfer.transport import TcpHandle

HOST = "127.0.0.1"
POOL = layout(40_000)  # 15 MB: more than a socket holds
ALL = copy_plan(
    POOL, POOL, source_blocks=range(POOL.num_blocks), target_blocks=range(POOL.num_blocks)
)
HALF = POOL.num_bytes // 2


@contextmanager
def impostor(talk: Callable[[socket.socket], None]) -> Iterator[TcpHandle]:
    """An owner that does as it likes with one connection."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            talk(sock)

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield TcpHandle(layout=POOL, host=HOST, port=port, secret=b"secret")
    finally:
        thread.join()
        listener.close()


def greet_and_send_half(sock: socket.socket) -> None:
    sock.sendall(bytes(32))
    assert receive(sock, hashlib.sha256().digest_size)
    sock.sendall(WELCOME)
    receive(sock, int.from_bytes(receive(sock, LENGTH_BYTES), "big"))
    sock.sendall(POOL.num_bytes.to_bytes(TOTAL_BYTES, "big"))
    sock.sendall(b"\x05" * HALF)


def half_is_here(memory: PoolMemory) -> None:
    while not memory.array[HALF - 1]:
        time.sleep(0.001)


@pytest.fixture
def memory() -> PoolMemory:
    return PoolMemory.create(POOL.num_bytes)


async def test_only_who_knows_the_secret_may_read(memory: PoolMemory) -> None:
    transport = TcpTransport(memory, POOL, host=HOST)
    handle = transport.describe()
    with pytest.raises(TransferError, match="does not let us in"):
        await transport.connect(msgspec.structs.replace(handle, secret=b"guessed"))
    (await transport.connect(handle)).close()
    await transport.close()


async def test_slices_outside_are_refused_by_reader_and_owner(memory: PoolMemory) -> None:
    transport = TcpTransport(memory, POOL, host=HOST)
    handle = transport.describe()
    peer = await transport.connect(handle)
    with pytest.raises(LayoutMismatch, match="of a pool of"):
        await transport.pull(peer, [Slice(POOL.num_bytes - 1, 0, 2)])
    with pytest.raises(LayoutMismatch, match="of a pool of"):
        await transport.pull(peer, [Slice(0, POOL.num_bytes - 1, 2)])
    larger = msgspec.structs.replace(handle, layout=replace(POOL, num_blocks=50_000))
    believer = await transport.connect(larger)
    with pytest.raises(TransferError, match=r"refuses: bytes .* of a pool of"):
        await transport.pull(believer, [Slice(POOL.num_bytes - 1, 0, 2)])
    await transport.pull(believer, [Slice(POOL.num_bytes - 1, 0, 1)])  # on a new connection
    peer.close()
    believer.close()
    await transport.close()


async def test_an_owner_that_dies_in_the_middle_is_an_error(memory: PoolMemory) -> None:
    transport = TcpTransport(memory, POOL, host=HOST)
    with impostor(greet_and_send_half) as handle:
        peer = await transport.connect(handle)
        with pytest.raises(TransferError, match="stopped coming"):
            await transport.pull(peer, ALL)
        peer.close()
    await transport.close()


async def test_an_owner_that_falls_silent_is_an_error(memory: PoolMemory) -> None:
    transport = TcpTransport(memory, POOL, host=HOST, io_seconds=0.05)

    def fall_silent(sock: socket.socket) -> None:
        greet_and_send_half(sock)
        sock.recv(1)  # until the reader hangs up

    with impostor(fall_silent) as handle:
        peer = await transport.connect(handle)
        with pytest.raises(TransferError, match=r"stopped coming.*timed out"):
            await transport.pull(peer, ALL)
        peer.close()
    await transport.close()


async def test_nothing_is_written_after_a_cancelled_pull(memory: PoolMemory) -> None:
    """The owner has sent half of it and would send more; the reader hangs up on it."""
    transport = TcpTransport(memory, POOL, host=HOST)
    cancelled = threading.Event()

    def go_on_later(sock: socket.socket) -> None:
        greet_and_send_half(sock)
        cancelled.wait()
        try:
            sock.sendall(b"\x06" * HALF)
        except OSError:
            return

    with impostor(go_on_later) as handle:
        peer = await transport.connect(handle)
        pull = asyncio.create_task(transport.pull(peer, ALL))
        await asyncio.to_thread(half_is_here, memory)
        for _ in range(2):  # a second cancellation must not hurry it
            pull.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await pull
        cancelled.set()
        peer.close()
    assert not memory.array[HALF:].any()
    await transport.close()


async def test_a_cancelled_pull_can_be_repeated(memory: PoolMemory) -> None:
    theirs = PoolMemory.create(POOL.num_bytes)
    theirs.array[:] = np.arange(POOL.num_bytes) % 251
    owner = TcpTransport(theirs, POOL, host=HOST)
    reader = TcpTransport(memory, POOL, host=HOST)
    peer = await reader.connect(owner.describe())
    for num_turns in range(4):
        pull = asyncio.create_task(reader.pull(peer, ALL))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
    memory.array[:] = 0
    await reader.pull(peer, ALL)
    assert (memory.array == theirs.array).all()
    peer.close()
    await reader.close()
    await owner.close()


async def test_an_owner_that_closes_hangs_up_on_its_readers(memory: PoolMemory) -> None:
    owner = TcpTransport(PoolMemory.create(POOL.num_bytes), POOL, host=HOST)
    reader = TcpTransport(memory, POOL, host=HOST)
    peer = await reader.connect(owner.describe())
    await owner.close()
    with pytest.raises(TransferError):
        await reader.pull(peer, ALL)
    peer.close()
    await reader.close()
    await reader.close()


async def test_several_readers_read_at_once(memory: PoolMemory) -> None:
    theirs = PoolMemory.create(POOL.num_bytes)
    theirs.array[:] = np.arange(POOL.num_bytes) % 251
    owner = TcpTransport(theirs, POOL, host=HOST)
    reader = TcpTransport(memory, POOL, host=HOST)
    peers: list[TcpPeer] = [await reader.connect(owner.describe()) for _ in range(3)]
    thirds = [range(layer, layer + 1) for layer in range(3)]
    blocks = range(POOL.num_blocks)
    plans = [
        copy_plan(POOL, POOL, source_blocks=blocks, target_blocks=blocks, layers=layers)
        for layers in thirds
    ]
    async with asyncio.TaskGroup() as group:
        for peer, plan in zip(peers, plans, strict=True):
            group.create_task(reader.pull(peer, plan))
    assert (memory.array == theirs.array).all()
    for peer in peers:
        peer.close()
    await reader.close()
    await owner.close()


numbers = st.integers(-20, 120)
axes = st.lists(st.builds(Axis, numbers, numbers, numbers), max_size=9).map(tuple)


@given(st.lists(st.builds(Slice, numbers, numbers, numbers, axes), max_size=3))
def test_whatever_is_asked_only_bytes_of_the_pool_are_sent(slices: list[Slice]) -> None:
    payload = encode_request(slices)[LENGTH_BYTES:]
    try:
        accepted = decode_request(payload, num_bytes=100)
    except TransferError:
        return
    runs = expand(accepted)
    assert runs[:, 2].sum() <= 100
    if len(runs):
        assert runs[:, 0].min() >= 0
        assert (runs[:, 0] + runs[:, 2]).max() <= 100


@given(st.binary(max_size=40))
def test_a_request_of_random_bytes_is_an_error_or_lies_within(payload: bytes) -> None:
    try:
        slices = decode_request(payload, num_bytes=100)
    except TransferError:
        return
    assert sum(piece.total_bytes for piece in slices) <= 100


short = st.integers(1, 4)
small_axes = st.lists(st.builds(Axis, short, st.integers(-50, 50), short), max_size=3).map(tuple)


@given(st.builds(Slice, st.just(1000), short, st.integers(1, 9), small_axes), st.integers(1, 40))
def test_portions_are_the_same_bytes_in_the_same_order(piece: Slice, max_bytes: int) -> None:
    parts = list(portions(piece, max_bytes))
    assert (expand(parts) == expand([piece])).all()
    assert all(part.total_bytes <= max_bytes or not part.axes for part in parts)
