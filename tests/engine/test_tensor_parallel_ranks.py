"""Ranks in processes compute what one process does, and end together."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from driving import BLOCK_SIZE, Driven, blocks_for, load, run, step
from tiny_models import Tiny, write_folder

from expediter.engine.executor import TorchExecutor
from expediter.errors import EngineLost
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory

TINY = Tiny(
    vocab_size=97,
    num_layers=3,
    num_heads=12,
    num_kv_heads=6,
    tied=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)
SIZE = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), TINY, TINY.tensors(seed=7))


@pytest.fixture(scope="module")
def executors(folder: Path) -> Iterator[tuple[TorchExecutor, TorchExecutor]]:
    """Of one process and of three."""
    loaded = (load(folder), load(folder, tensor_parallel=SIZE))
    yield loaded
    for executor in loaded:
        asyncio.run(executor.close())


def prompts(*lengths: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(TINY.vocab_size), k=length) for length in lengths]


def driven(token_ids: list[int], *, first_block: int = 0, chunk_size: int = 1000) -> Driven:
    return Driven(
        name=f"r{first_block}",
        token_ids=list(token_ids),
        block_ids=blocks_for(len(token_ids) + 8, start=first_block),
        num_output_tokens=8,
        chunk_size=chunk_size,
        num_logprobs=5,
    )


def heads_of(memory: PoolMemory, layout: KVLayout) -> np.ndarray:
    """A pool by layer, K or V, head, block, slot and element."""
    return memory.array.view(np.float32).reshape(layout.shape).transpose(1, 2, 3, 0, 4, 5)


async def test_the_tokens_are_those_of_one_process(
    executors: tuple[TorchExecutor, TorchExecutor],
) -> None:
    """Whole, in chunks, in a batch, and after a cached prefix."""
    one, three = executors
    given = prompts(1, 40, 90, seed=1)
    expected = [driven(prompt) for prompt in given]
    for sequence in expected:
        await run(one, [sequence])
    for chunk_size in (7, 1000):
        found = [
            driven(prompt, first_block=60 * place, chunk_size=chunk_size)
            for place, prompt in enumerate(given)
        ]
        await run(three, found)
        assert [each.output_ids for each in found] == [each.output_ids for each in expected]
    cached = driven(given[2], first_block=120)
    cached.num_computed = 88 // BLOCK_SIZE * BLOCK_SIZE
    await run(three, [cached])
    assert cached.output_ids == expected[2].output_ids
    likeliest = [[entry.logprob for entry in each.outputs[0].logprobs] for each in expected]
    np.testing.assert_allclose(
        [[entry.logprob for entry in each.outputs[0].logprobs] for each in found],
        likeliest,
        atol=1e-4,
    )


async def test_a_layer_is_told_of_when_every_rank_has_written_it(
    executors: tuple[TorchExecutor, TorchExecutor],
) -> None:
    """The ranks' pools side by side are the pool of one process."""
    one, three = executors
    assert (one.num_blocks, len(three.pools)) == (three.num_blocks, SIZE)
    [prompt] = prompts(50, seed=2)
    used = blocks_for(48)
    await step(one, [driven(prompt, chunk_size=48)])
    whole = heads_of(*one.pools[0])[:, :, :, used]
    told: list[int] = []

    def compare(num_layers: int) -> None:
        told.append(num_layers)
        parts = [heads_of(*pool)[:num_layers, :, :, used] for pool in three.pools]
        np.testing.assert_allclose(np.concatenate(parts, 2), whole[:num_layers], atol=1e-4)

    failures: list[AssertionError] = []

    def listener(num_layers: int) -> None:
        try:
            compare(num_layers)
        except AssertionError as failure:
            failures.append(failure)

    three.watch_layers(listener)
    sequence = driven(prompt, chunk_size=48)  # no token is sampled, so no sum ends the step
    await step(three, [sequence])
    three.watch_layers(None)
    assert told == [1, 2, 3]
    assert not failures, failures[0]


def ranks_of(pid: int) -> list[psutil.Process]:
    """Its children that are ranks."""
    children = psutil.Process(pid).children()
    return [child for child in children if "expediter.engine.rank" in child.cmdline()]


def gone(processes: list[psutil.Process]) -> bool:
    return all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in processes)


def with_new_rank(folder: Path, **settings: object) -> tuple[TorchExecutor, psutil.Process]:
    """An executor of two processes, and the other one."""
    before = ranks_of(os.getpid())
    executor = load(folder, tensor_parallel=2, **settings)
    [rank] = [each for each in ranks_of(os.getpid()) if each not in before]
    return executor, rank


async def test_a_rank_that_dies_takes_the_engine_with_it(folder: Path) -> None:
    executor, rank = with_new_rank(folder)
    lost: asyncio.Future[EngineLost] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    executor.on_loss(lambda failure: loop.call_soon_threadsafe(lost.set_result, failure))
    sequence = driven([1, 2, 3])
    await step(executor, [sequence])
    rank.kill()
    with pytest.raises(EngineLost, match="rank 1 of 2 was ended by SIGKILL"):
        await step(executor, [driven([1, 2, 3])])
    assert "rank 1 of 2" in str(await lost)
    await executor.close()
    assert gone([rank])


async def test_a_rank_that_hangs_ends_the_step_after_a_while(folder: Path) -> None:
    executor, rank = with_new_rank(folder, rank_timeout_seconds=3.0)
    rank.suspend()
    with pytest.raises(EngineLost, match="Timed out"):
        await step(executor, [driven([1, 2, 3])])
    await executor.close()
    assert gone([rank])


OWNER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from driving import load
from pathlib import Path
if __name__ == "__main__":
    executor = load(Path(sys.argv[2]), tensor_parallel=2)
    print("loaded", flush=True)
    time.sleep(600)
"""


def test_no_rank_outlives_its_worker(folder: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(Path(__file__).parent), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"loaded\n"
        ranks = ranks_of(owner.pid)
        assert len(ranks) == 1
        ranks[0].send_signal(signal.SIGINT)  # Ctrl-C reaches it too; only the worker acts on it
        ranks[0].send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert not gone(ranks)
        owner.kill()
    deadline = time.monotonic() + 20
    while not gone(ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)
