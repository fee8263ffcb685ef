"""Copy plans against an oracle that looks at every piece, and what must not be copied."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from expediter.errors import LayoutMismatch, TransferError
from expediter.transfer import shared_memory
from expediter.transfer.copy_plan import Slice, copy_plan, expand, shards_for
from expediter.transfer.layout import KVIdentity, KVLayout, check_compatible
from expediter.transfer.memory import PoolMemory
from expediter.transfer.shared_memory import SharedMemoryTransport, copy
from expediter.transfer.strided import halves

Bytes = NDArray[np.uint8]


def layout(*, tp_size: int = 1, tp_rank: int = 0, num_blocks: int = 6, total: int = 6) -> KVLayout:
    return KVLayout(
        num_layers=3,
        num_kv_heads=max(1, total // tp_size),
        num_blocks=num_blocks,
        block_size=2,
        head_size=2,
        dtype="fp8",
        element_bytes=1,
        tp_size=tp_size,
        tp_rank=tp_rank,
        num_total_kv_heads=total,
    )


def shards(tp_size: int, *, num_blocks: int, total: int) -> list[KVLayout]:
    return [
        layout(tp_size=tp_size, tp_rank=rank, num_blocks=num_blocks, total=total)
        for rank in range(tp_size)
    ]


def whole(layouts: list[KVLayout], pools: list[Bytes]) -> Bytes:
    """The oracle: [block, layer, kv, head, bytes], gathered from all ranks piece by piece."""
    gathered = np.zeros(whole_shape(layouts[0]), np.uint8)
    for index in np.ndindex(gathered.shape[:-1]):
        block, layer, kv, head = map(int, index)
        for shard, pool in zip(layouts, pools, strict=True):
            if head in shard.heads:
                start = shard.offset(layer=layer, kv=kv, head=head - shard.heads[0], block=block)
                gathered[index] = pool[start : start + shard.piece_bytes]
    return gathered


def whole_shape(layout: KVLayout) -> tuple[int, ...]:
    return (layout.num_blocks, layout.num_layers, 2, layout.total_kv_heads, layout.piece_bytes)


def filled(layouts: list[KVLayout], seed: int) -> list[Bytes]:
    """Pools in which ranks that hold the same head hold the same bytes."""
    content = np.random.default_rng(seed).integers(0, 256, whole_shape(layouts[0]), np.uint8)
    return [content[:, :, :, shard.heads.start : shard.heads.stop].ravel() for shard in layouts]


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, int, int]:
    """Heads, and two numbers of ranks that can share them."""
    total = draw(st.sampled_from([1, 2, 3, 6]))
    sizes = [size for size in range(1, 13) if total % size == 0 or size % total == 0]
    return total, draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes))


@given(splits(), st.data())
def test_any_split_reads_any_other(split: tuple[int, int, int], data: st.DataObject) -> None:
    total, num_sources, num_targets = split
    sources = shards(num_sources, num_blocks=6, total=total)
    targets = shards(num_targets, num_blocks=8, total=total)
    theirs, ours = filled(sources, 1), filled(targets, 2)
    num = data.draw(st.integers(0, 6))
    source_blocks = data.draw(st.permutations(range(6)))[:num]
    target_blocks = data.draw(st.permutations(range(8)))[:num]
    start = data.draw(st.integers(0, 3))
    layers = range(start, data.draw(st.integers(start, 3)))

    expected = whole(targets, ours)
    given_kv = whole(sources, theirs)
    for one, other in zip(source_blocks, target_blocks, strict=True):
        expected[other, layers.start : layers.stop] = given_kv[one, layers.start : layers.stop]
    for target, pool in zip(targets, ours, strict=True):
        for index, heads in shards_for(target, sources):
            plan = copy_plan(
                sources[index],
                target,
                source_blocks=source_blocks,
                target_blocks=target_blocks,
                layers=layers,
                heads=heads,
            )
            rows = expand(plan)
            assert rows[:, 2].sum() == sum(piece.total_bytes for piece in plan)
            copy(theirs[index], pool, plan)
    assert (whole(targets, ours) == expected).all()


def test_a_prompt_in_neighbouring_blocks_is_one_slice_in_either_direction() -> None:
    pool = layout()
    rising = copy_plan(pool, pool, source_blocks=[1, 2, 3], target_blocks=[0, 1, 2])
    falling = copy_plan(pool, pool, source_blocks=[3, 2, 1], target_blocks=[0, 1, 2])
    assert [len(rising), len(falling)] == [1, 1]
    assert rising[0].num_bytes == 3 * pool.block_bytes
    assert falling[0].num_bytes == pool.block_bytes
    everything = copy_plan(pool, pool, source_blocks=range(6), target_blocks=range(6))
    assert [piece.num_bytes for piece in everything] == [pool.num_bytes]


def test_a_mismatch_names_everything_that_differs() -> None:
    ours = layout()
    theirs = replace(ours, dtype="float16", block_size=16, identity=KVIdentity(revision="b"))
    with pytest.raises(LayoutMismatch, match=r"dtype 'float16' there.*block_size 16.*revision 'b'"):
        check_compatible(theirs, ours)
    check_compatible(replace(ours, num_blocks=9), ours)


def test_uneven_splits_and_blocks_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="must divide"):
        layout(tp_size=4, total=6)
    with pytest.raises(ValueError, match="not within the pool's 6 blocks"):
        copy_plan(layout(), layout(), source_blocks=[6], target_blocks=[0])
    with pytest.raises(ValueError, match="2 blocks do not fit into 1"):
        copy_plan(layout(), layout(), source_blocks=[0, 1], target_blocks=[0])
    with pytest.raises(LayoutMismatch, match="head 3"):
        shards_for(layout(), shards(2, num_blocks=6, total=6)[:1])


@given(st.permutations(range(6)), st.integers(1, 6))
def test_halves_are_disjoint_alike_and_together_everything(blocks: list[int], num: int) -> None:
    pool = layout()
    plan = copy_plan(pool, pool, source_blocks=blocks[:num], target_blocks=range(num))
    first, second = halves(plan)
    assert sorted(bytes_of(first + second)) == sorted(bytes_of(plan))
    longest = max(piece.num_bytes for piece in plan)
    total = len(bytes_of(plan))
    assert abs(len(bytes_of(first)) - len(bytes_of(second))) <= 2 * max(longest, total // 16)


def bytes_of(slices: Sequence[Slice]) -> list[tuple[int, int]]:
    """Where each byte comes from and goes to."""
    rows = expand(slices).tolist()
    return [(source + n, target + n) for source, target, length in rows for n in range(length)]


@pytest.mark.parametrize("min_shared_bytes", [1, 1 << 40])
async def test_one_thread_or_two_copy_the_same(
    min_shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "MIN_SHARED_BYTES", min_shared_bytes)
    pool = layout(num_blocks=50)
    theirs, ours = PoolMemory.create(pool.num_bytes), PoolMemory.create(pool.num_bytes)
    theirs.array[:] = np.random.default_rng(1).integers(0, 256, pool.num_bytes)
    owner, reader = SharedMemoryTransport(theirs, pool), SharedMemoryTransport(ours, pool)
    peer = await reader.connect(owner.describe())
    source, target = (random.Random(seed).sample(range(50), 50) for seed in (1, 2))
    plan = copy_plan(pool, pool, source_blocks=source[:40], target_blocks=target[:40])
    await reader.pull(peer, plan)
    expected = np.zeros(pool.num_bytes, np.uint8)
    copy(theirs.array, expected, plan)
    assert (ours.array == expected).all()
    await reader.close()
    await owner.close()


async def test_shared_memory_copies_from_a_pool_whose_owner_is_gone() -> None:
    """The mapping outlives the owner's: what was promised can be read to the end."""
    pool = layout()
    theirs, ours = PoolMemory.create(pool.num_bytes), PoolMemory.create(pool.num_bytes)
    theirs.array[:] = np.arange(pool.num_bytes) % 251
    owner = SharedMemoryTransport(theirs, pool)
    reader = SharedMemoryTransport(ours, pool)
    handle = owner.describe()
    assert reader.can_reach(handle)
    peer = await reader.connect(handle)
    await owner.close()
    theirs.close()
    plan = copy_plan(pool, pool, source_blocks=range(6), target_blocks=range(6))
    await reader.pull(peer, plan)
    assert (ours.array == np.arange(pool.num_bytes) % 251).all()
    with pytest.raises(LayoutMismatch, match="of a pool of"):
        await reader.pull(peer, [plan[0]._replace(source_offset=1)])
    peer.close()
    await reader.close()
    ours.close()
    with pytest.raises(TransferError, match="cannot be opened"):
        await reader.connect(handle)


async def test_a_cancelled_pull_ends_only_when_nothing_is_written_any_more() -> None:
    pool = layout(num_blocks=4000)
    theirs, ours = PoolMemory.create(pool.num_bytes), PoolMemory.create(pool.num_bytes)
    theirs.array[:] = 1
    transport = SharedMemoryTransport(ours, pool)
    owner = SharedMemoryTransport(theirs, pool)
    peer = await transport.connect(owner.describe())
    plan = copy_plan(pool, pool, source_blocks=range(4000), target_blocks=range(4000))
    pull = asyncio.create_task(transport.pull(peer, plan))
    await asyncio.sleep(0)
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert ours.array.all()
    await transport.close()
    await owner.close()
