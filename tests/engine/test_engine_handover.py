"""Greedy tokens of the real engine do not depend on which of two workers computed the prompt."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Driven, load, step
from handing import handed_over, running
from tiny_models import Tiny, write_folder

from expediter.engine.executor import TorchExecutor

TINY = Tiny(num_layers=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), TINY, TINY.tensors(seed=7))


@pytest.fixture(scope="module")
def executors(folder: Path) -> Iterator[tuple[TorchExecutor, TorchExecutor]]:
    loaded = (load(folder), load(folder))
    yield loaded
    for executor in loaded:
        asyncio.run(executor.close())


async def test_the_model_tells_of_each_layer_while_somebody_listens(folder: Path) -> None:
    executor = load(folder)
    heard: list[int] = []
    executor.watch_layers(heard.append)
    sequence = Driven(name="a", token_ids=[1, 2, 3], block_ids=[0, 1], num_output_tokens=2)
    await step(executor, [sequence])
    assert heard == [1, 2, 3]
    executor.watch_layers(None)
    await step(executor, [sequence])
    assert heard == [1, 2, 3]
    await executor.close()


@pytest.mark.parametrize("budget", [16, 512])
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 33, 150])
async def test_the_tokens_are_those_of_one_worker(
    executors: tuple[TorchExecutor, TorchExecutor], budget: int, num_tokens: int
) -> None:
    prompt = random.Random(num_tokens).choices(range(TINY.vocab_size), k=num_tokens)
    first, second = executors
    async with running("p", first, budget) as prefill, running("d", second, budget) as decode:
        leg = await handed_over(prefill, decode, prompt)
        assert leg.report.num_tokens == num_tokens
        await prefill.until_idle()
        await decode.until_idle()


async def test_hits_on_either_side_change_no_token(
    executors: tuple[TorchExecutor, TorchExecutor],
) -> None:
    rng = random.Random(3)
    prompt = rng.choices(range(TINY.vocab_size), k=90)
    first, second = executors
    async with running("p", first, 32) as prefill, running("d", second, 32) as decode:
        await prefill.tokens(prompt[:50])
        await decode.tokens(prompt[:21])
        leg = await handed_over(prefill, decode, prompt)
        assert leg.report.num_tokens == 90 - 20
        again = [*prompt, *rng.choices(range(TINY.vocab_size), k=30)]
        leg = await handed_over(prefill, decode, again)
        assert leg.report.num_tokens == 120 - 88
        await prefill.until_idle()
        await decode.until_idle()


async def test_several_transfers_beside_running_requests(
    executors: tuple[TorchExecutor, TorchExecutor],
) -> None:
    rng = random.Random(4)
    first, second = executors
    prompts = [rng.choices(range(TINY.vocab_size), k=rng.randrange(10, 60)) for _ in range(6)]
    async with running("p", first, 64) as prefill, running("d", second, 64) as decode:
        await asyncio.gather(*(handed_over(prefill, decode, prompt) for prompt in prompts))
        await prefill.until_idle()
        await decode.until_idle()
