"""Pulls between workers that are split differently: from several pools at once, one end."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import numpy as np
import pytest
from handover_pair import SlowTransport

from expediter.errors import TransferError
from expediter.transfer.incoming import PullOrder
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory
from expediter.worker.handover.pools import Pools, RemotePools

NUM_HEADS = 6
NUM_BLOCKS = 8
ORDER = PullOrder(range(2), (1, 2, 5), (4, 0, 7))


@contextmanager
def ranks(size: int) -> Iterator[list[SlowTransport]]:
    """A worker's pools; each rank's bytes say which head of which block they are."""
    with ExitStack() as stack:
        made = []
        for rank in range(size):
            layout = KVLayout(
                num_layers=2,
                num_kv_heads=NUM_HEADS // size,
                num_blocks=NUM_BLOCKS,
                block_size=4,
                head_size=1,
                dtype="int64",
                element_bytes=8,
                tp_size=size,
                tp_rank=rank,
            )
            memory = PoolMemory.create(layout.num_bytes)
            stack.callback(memory.close)
            made.append(SlowTransport(memory, layout))
        yield made


def heads_of(transports: list[SlowTransport]) -> np.ndarray:
    """All heads of a worker: layer, K or V, head, block, slot."""
    parts = [each._memory.array.view(np.int64).reshape(each.layout.shape) for each in transports]
    return np.concatenate(parts, 3)[..., 0].transpose(1, 2, 3, 0, 4)


@asynccontextmanager
async def connected(
    sources: list[SlowTransport], targets: list[SlowTransport]
) -> AsyncIterator[RemotePools]:
    theirs, ours = Pools([[each] for each in sources]), Pools([[each] for each in targets])
    remote = await ours.connect(theirs.describe())
    yield remote
    remote.close()
    await ours.close()
    await theirs.close()


def fill(transports: list[SlowTransport]) -> None:
    for rank, each in enumerate(transports):
        numbers = each._memory.array.view(np.int64)
        numbers[:] = 1 + 1000 * rank + np.arange(len(numbers))


@pytest.mark.parametrize("source", [1, 2, 3, 6])
@pytest.mark.parametrize("target", [1, 2, 3, 6])
async def test_every_head_arrives_from_the_pool_that_has_it(source: int, target: int) -> None:
    with ranks(source) as sources, ranks(target) as targets:
        fill(sources)
        async with connected(sources, targets) as remote:
            copied = await remote.pull(ORDER)
        given, found = heads_of(sources), heads_of(targets)
        assert copied.num_bytes == 3 * 2 * 2 * NUM_HEADS * 4 * 8
        assert (found[:, :, :, [4, 0, 7]] == given[:, :, :, [1, 2, 5]]).all()
        assert not found[:, :, :, [1, 2, 3, 5, 6]].any()
        del given, found


async def test_a_pull_that_fails_at_one_rank_ends_when_the_others_have_ended() -> None:
    with ranks(3) as sources, ranks(3) as targets:
        async with connected(sources, targets) as remote:
            targets[0].num_good_pulls = 0
            targets[2].may_pull.clear()
            pull = asyncio.ensure_future(remote.pull(ORDER))
            done, _ = await asyncio.wait([pull], timeout=0.1)
            assert not done
            targets[2].may_pull.set()
            with pytest.raises(TransferError, match="the wire broke"):
                await pull


async def test_a_pull_that_is_cancelled_is_cancelled_at_every_rank() -> None:
    with ranks(3) as sources, ranks(3) as targets:
        async with connected(sources, targets) as remote:
            for each in targets:
                each.may_pull.clear()
            pull = asyncio.ensure_future(remote.pull(ORDER))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [each.num_waiting for each in targets] == [1, 1, 1]
            pull.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pull
            assert [each.num_waiting for each in targets] == [0, 0, 0]
