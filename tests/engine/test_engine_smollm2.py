"""The model in the box, end to end on token ids; skipped where it was never fetched."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import BLOCK_SIZE, Driven, blocks_for, load, run

from expediter.config import cache_dir, environment
from expediter.engine.default_model import MEMBER
from expediter.engine.executor import TorchExecutor
from expediter.tokenizer.loading import load_tokenizer
from expediter.tokenizer.tokenizer import Tokenizer

TEXT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"
# Of a log probability, among the likeliest tokens; see test_engine_logits.py.
BFLOAT16_TOLERANCE = 0.35


@pytest.fixture(scope="module")
def model() -> Path:
    path = cache_dir(environment()) / "models" / Path(MEMBER).name
    if not path.is_file():
        pytest.skip(f"no model at {path}; `expediter up` fetches it")
    return path


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def executor(model: Path) -> Iterator[TorchExecutor]:
    loaded = load(model)
    yield loaded
    asyncio.run(loaded.close())


def driven(token_ids: list[int], *, chunk_size: int = 1000, first_block: int = 0) -> Driven:
    return Driven(
        name="a",
        token_ids=token_ids,
        block_ids=blocks_for(len(token_ids) + 20, start=first_block),
        num_output_tokens=20,
        chunk_size=chunk_size,
        num_logprobs=5,
    )


async def test_it_knows_a_capital(executor: TorchExecutor, tokenizer: Tokenizer) -> None:
    sequence = driven(tokenizer.encode(TEXT))
    await run(executor, [sequence])
    assert tokenizer.decode(sequence.output_ids).startswith(" Madrid")


async def test_chunks_and_a_cached_prefix_change_no_token(
    executor: TorchExecutor, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode(TEXT)
    whole = driven(token_ids)
    await run(executor, [whole])
    chunked = driven(token_ids, chunk_size=5, first_block=100)
    await run(executor, [chunked])
    cached = driven(token_ids)
    cached.num_computed = (len(token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE
    await run(executor, [cached])
    assert whole.output_ids == chunked.output_ids == cached.output_ids


@pytest.mark.parametrize("block_size", [BLOCK_SIZE, 16])
async def test_bfloat16_stays_near_float32(
    executor: TorchExecutor, tokenizer: Tokenizer, model: Path, block_size: int
) -> None:
    """Blocks of 16 tokens are what the compiled functions serve."""
    exact = driven(tokenizer.encode(TEXT))
    rounded = driven(tokenizer.encode(TEXT), chunk_size=1)
    other = load(model, dtype="bfloat16", block_size=block_size)
    await run(executor, [exact])
    await run(other, [rounded])
    await other.close()
    expected = {entry.token_id: entry.logprob for entry in exact.outputs[0].logprobs}
    found = {entry.token_id: entry.logprob for entry in rounded.outputs[0].logprobs}
    shared = expected.keys() & found.keys()
    assert len(shared) >= 3
    for token_id in shared:
        assert found[token_id] == pytest.approx(expected[token_id], abs=BFLOAT16_TOLERANCE)
