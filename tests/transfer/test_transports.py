"""Every transport between two processes, and the choice among them."""

import asyncio
import base64
import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pool_owner import content, layout

from expediter.errors import TransferError
from expediter.transfer.copy_plan import copy_plan
from expediter.transfer.memory import PoolMemory
from expediter.transfer.shared_memory import copy
from expediter.transfer.transport import KVHandle, SharedMemoryHandle, TcpHandle
from expediter.transfer.transports import TransportKind, choose, transports

NUM_BLOCKS = 100
HAS_NIXL = importlib.util.find_spec("nixl") is not None
KINDS = [
    pytest.param(
        kind,
        marks=pytest.mark.skipif(
            kind is TransportKind.NIXL and not HAS_NIXL, reason="NIXL is not installed"
        ),
    )
    for kind in TransportKind
]


def start_owner(kind: str) -> tuple[subprocess.Popen[bytes], KVHandle]:
    """Another process with a pool of known content, and its handle."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("pool_owner.py"), kind, str(NUM_BLOCKS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    line = next((line for line in process.stdout if line.startswith(b"handles ")), None)
    assert line is not None, "the pool's owner did not start"
    (handle,) = msgspec.msgpack.decode(base64.b64decode(line.split()[1]), type=list[KVHandle])
    return process, handle


@pytest.fixture(scope="module")
def handle_of() -> Iterator[Callable[[str], KVHandle]]:
    """A pool in another process, one for each kind of transport, made when first asked for."""
    owners: dict[str, tuple[subprocess.Popen[bytes], KVHandle]] = {}

    def handle(kind: str) -> KVHandle:
        if kind not in owners:
            owners[kind] = start_owner(kind)
        return owners[kind][1]

    yield handle
    for process, _ in owners.values():
        process.communicate()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_prompt_arrives_byte_for_byte_from_another_process(
    kind: TransportKind, handle_of: Callable[[str], KVHandle]
) -> None:
    """In rising, falling and scattered blocks; all layers, one layer, one head."""
    pool = layout(NUM_BLOCKS)
    memory, rng = PoolMemory.create(pool.num_bytes), random.Random(1)
    ours = transports(memory, pool, kinds=[kind])
    theirs = content(pool.num_bytes)
    found = choose(ours, [handle_of(kind)])
    assert found is not None
    transport, handle = found
    peer = await transport.connect(handle)
    for source in (range(5, 90), range(90, 5, -1), rng.sample(range(NUM_BLOCKS), 30)):
        scattered = rng.sample(range(NUM_BLOCKS), len(source))
        for selection in ({}, {"layers": range(1, 2)}, {"heads": range(1, 2)}):
            for target in (scattered, range(len(source))):
                memory.array[:] = 0
                plan = copy_plan(
                    pool, pool, source_blocks=source, target_blocks=target, **selection
                )
                await transport.pull(peer, plan)
                expected = np.zeros_like(theirs)
                copy(theirs, expected, plan)
                assert (memory.array == expected).all()
    await transport.pull(peer, [])
    peer.close()
    peer.close()
    await transport.close()


@pytest.mark.parametrize("kind", [each for each in KINDS if each.values[0] != "shared-memory"])
async def test_a_process_that_was_killed_is_an_error(kind: TransportKind) -> None:
    """Shared memory is another matter: what is mapped stays."""
    pool = layout(NUM_BLOCKS)
    memory = PoolMemory.create(pool.num_bytes)
    (transport,) = transports(memory, pool, kinds=[kind])
    everything = range(NUM_BLOCKS)
    plan = copy_plan(pool, pool, source_blocks=everything, target_blocks=everything)
    process, handle = start_owner(kind)
    peer = await transport.connect(handle)
    await transport.pull(peer, plan)
    process.kill()
    process.communicate()
    for _ in range(2):  # the connection breaks; then there is nobody to connect to
        with pytest.raises(TransferError):
            await transport.pull(peer, plan)
    peer.close()
    await transport.close()


async def test_the_first_transport_that_reaches_a_handle_is_chosen() -> None:
    pool = layout(2)
    memory = PoolMemory.create(pool.num_bytes)
    ours = transports(memory, pool, kinds=["shared-memory", "tcp"])
    shared, tcp = (transport.describe() for transport in ours)
    assert isinstance(shared, SharedMemoryHandle)
    assert isinstance(tcp, TcpHandle)
    assert choose(ours, [tcp, shared]) == (ours[0], shared)
    elsewhere = msgspec.structs.replace(shared, host_id="another host")
    assert choose(ours, [elsewhere, tcp]) == (ours[1], tcp)
    assert choose(ours, [elsewhere]) is None
    for transport in ours:
        await transport.close()


async def test_what_does_not_work_here_is_left_out() -> None:
    """192.0.2.1 is for documentation (RFC 5737), so it is nobody's address."""
    pool = layout(2)
    memory = PoolMemory.create(pool.num_bytes)
    (only,) = transports(memory, pool, kinds=["tcp", "shared-memory"], host="192.0.2.1")
    assert isinstance(only.describe(), SharedMemoryHandle)
    await only.close()
    with pytest.raises(TransferError, match="none of tcp"):
        transports(memory, pool, kinds=["tcp"], host="192.0.2.1")
    with pytest.raises(ValueError, match="carrier-pigeon"):
        transports(memory, pool, kinds=["carrier-pigeon"])


@pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")
async def test_nixl_refuses_what_is_no_handle_of_its_own() -> None:
    pool = layout(2)
    memory = PoolMemory.create(pool.num_bytes)
    nixl, tcp = transports(memory, pool, kinds=["nixl", "tcp"])
    with pytest.raises(TransferError, match="NIXL cannot read"):
        await nixl.connect(tcp.describe())
    nonsense = msgspec.structs.replace(nixl.describe(), metadata=b"nonsense")
    with pytest.raises(TransferError, match="cannot reach"):
        await nixl.connect(nonsense)
    for transport in (nixl, tcp):
        await transport.close()


@pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")
async def test_nixl_refuses_memory_that_is_not_registered(
    handle_of: Callable[[str], KVHandle],
) -> None:
    """A handle that promises more blocks than there are; afterwards, what there is can be read."""
    pool = layout(NUM_BLOCKS)
    memory = PoolMemory.create(pool.num_bytes)
    (transport,) = transports(memory, pool, kinds=["nixl"])
    handle = handle_of("nixl")
    larger = layout(2 * NUM_BLOCKS)
    peer = await transport.connect(msgspec.structs.replace(handle, layout=larger))
    last = larger.num_blocks - 1
    plan = copy_plan(larger, pool, source_blocks=[last], target_blocks=[0])
    with pytest.raises(TransferError, match="NIXL does not take"):
        await transport.pull(peer, plan)
    other = await transport.connect(handle)
    peer.close()  # the other one knows the same agent and goes on
    everything = range(NUM_BLOCKS)
    plan = copy_plan(pool, pool, source_blocks=everything, target_blocks=everything)
    await transport.pull(other, plan)
    assert (memory.array == content(pool.num_bytes)).all()
    other.close()
    await transport.close()
    await transport.close()


@pytest.mark.skipif(not HAS_NIXL, reason="NIXL is not installed")
async def test_a_cancelled_nixl_pull_disconnects_and_can_be_repeated(
    handle_of: Callable[[str], KVHandle],
) -> None:
    pool = layout(NUM_BLOCKS)
    memory, rng = PoolMemory.create(pool.num_bytes), random.Random(1)
    (transport,) = transports(memory, pool, kinds=["nixl"])
    blocks = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    plan = copy_plan(pool, pool, source_blocks=blocks, target_blocks=blocks)
    handle = handle_of("nixl")
    peer = await transport.connect(handle)
    for num_turns in range(3):
        pull = asyncio.create_task(transport.pull(peer, plan))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
    memory.array[:] = 0
    await transport.pull(peer, plan)
    assert (memory.array == content(pool.num_bytes)).all()
    peer.close()
    await transport.close()
