"""Prompts go between workers of any two tensor-parallel sizes, and no token changes."""

import asyncio
import random
from collections.abc import Iterator
from itertools import count

import pytest
from driving import load
from handing import handed_over, running
from tiny_models import Tiny, write_folder

from expediter.engine.executor import TorchExecutor

TINY = Tiny(num_layers=3, num_heads=6, num_kv_heads=3)
SALTS = (f"t{n}" for n in count())


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TorchExecutor]]:
    """Two of each size."""
    folder = write_folder(tmp_path_factory.mktemp("tiny"), TINY, TINY.tensors(seed=7))
    sizes = {"p1": 1, "d1": 1, "p3": 3, "d3": 3}
    loaded = {name: load(folder, tensor_parallel=size) for name, size in sizes.items()}
    yield loaded
    for executor in loaded.values():
        asyncio.run(executor.close())


@pytest.mark.parametrize(
    ("source", "target", "transport"),
    [
        *((1, 1, "shared-memory"), (1, 3, "shared-memory"), (3, 1, "shared-memory")),
        *((3, 3, "shared-memory"), (1, 3, "tcp"), (3, 1, "tcp")),
    ],
)
async def test_the_tokens_are_those_of_one_process(
    executors: dict[str, TorchExecutor], source: int, target: int, transport: str
) -> None:
    """In chunks of 32 tokens, with hits on both sides, then beside other requests."""
    rng = random.Random(source * 10 + target)
    prompt = rng.choices(range(TINY.vocab_size), k=90)
    others = [rng.choices(range(TINY.vocab_size), k=n) for n in (3, 61)]
    first, second = executors[f"p{source}"], executors[f"d{target}"]
    async with running("alone", executors["p1"], 512) as alone:
        expected = [await alone.tokens(each, salt=next(SALTS)) for each in (prompt, *others)]
    async with (
        running("p", first, 32, transport=transport) as prefill,
        running("d", second, 32, transport=transport) as decode,
    ):
        assert prefill.handover.description()["tp_size"] == source
        await prefill.tokens(prompt[:50])
        await decode.tokens(prompt[:21])
        leg = await handed_over(prefill, decode, prompt)
        assert leg.report.num_tokens == 90 - 20
        assert leg.report.num_bytes == 18 * first.spec.kv_bytes(4)
        assert await decode.tokens(prompt) == expected[0]
        await asyncio.gather(*(handed_over(prefill, decode, each) for each in others))
        assert [await decode.tokens(each) for each in others] == expected[1:]
        await prefill.until_idle()
        await decode.until_idle()
