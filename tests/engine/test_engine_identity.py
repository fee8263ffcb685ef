"""In float32 a request's greedy tokens do not depend on how or with whom it is computed."""

import asyncio
import random
from collections.abc import Iterator

import pytest
import torch
from driving import BLOCK_SIZE, NUM_BLOCKS, Driven, load, run, step
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import Tiny, reference_logits, write_folder

from expediter.engine.executor import TorchExecutor

TINY = Tiny(num_layers=3)
TENSORS = TINY.tensors(seed=7)
NUM_OUTPUT_TOKENS = 6
TIE = 1e-3  # logits nearer than this may swap places with the order of a sum


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchExecutor]:
    loaded = load(write_folder(tmp_path_factory.mktemp("tiny"), TINY, TENSORS))
    yield loaded
    asyncio.run(loaded.close())


def reference_tokens(prompt: list[int]) -> list[int]:
    """Greedy tokens by the dense reference, up to the first near-tie."""
    tokens: list[int] = []
    for _ in range(NUM_OUTPUT_TOKENS):
        logits = reference_logits(TINY, TENSORS, [*prompt, *tokens])[-1]
        best = logits.topk(2).values
        if best[0] - best[1] < TIE:
            break
        tokens.append(int(logits.argmax()))
    return tokens


def scattered_blocks(seed: int, lengths: list[int]) -> list[list[int]]:
    """Blocks for several sequences, interleaved and in no order, as after long use."""
    pool = random.Random(seed).sample(range(NUM_BLOCKS), NUM_BLOCKS)
    return [
        [pool.pop() for _ in range(-(-(length + NUM_OUTPUT_TOKENS) // BLOCK_SIZE))]
        for length in lengths
    ]


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(TINY.vocab_size, (num_tokens,), generator=generator).tolist()


lengths = st.lists(st.integers(1, 90), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(lengths=lengths, chunk_size=st.integers(1, 100), seed=st.integers(0, 1000))
def test_chunking_and_strangers_change_no_token(
    executor: TorchExecutor, lengths: list[int], chunk_size: int, seed: int
) -> None:
    """All of them start at different steps: prefills and decodes share batches."""
    prompts = [prompt_of(seed + i, length) for i, length in enumerate(lengths)]
    blocks = scattered_blocks(seed, lengths)
    sequences = [
        Driven(
            name=str(i),
            token_ids=prompt,
            block_ids=blocks[i],
            num_output_tokens=NUM_OUTPUT_TOKENS,
            chunk_size=chunk_size,
        )
        for i, prompt in enumerate(prompts)
    ]

    async def drive() -> None:
        started: list[Driven] = []
        for sequence in sequences:
            started.append(sequence)
            await step(executor, [s for s in started if not s.is_done])
        await run(executor, sequences)

    asyncio.run(drive())
    for sequence, prompt in zip(sequences, prompts, strict=True):
        expected = reference_tokens(prompt)
        assert sequence.output_ids[: len(expected)] == expected


@settings(max_examples=15, deadline=None, derandomize=True)
@given(shared_blocks=st.integers(1, 20), tail=st.integers(1, 30), seed=st.integers(0, 1000))
def test_a_cached_prefix_changes_no_token(
    executor: TorchExecutor, shared_blocks: int, tail: int, seed: int
) -> None:
    """The second request starts on the first one's blocks, computed with another tail."""
    num_shared = shared_blocks * BLOCK_SIZE
    prefix = prompt_of(seed, num_shared)
    prompts = [prefix + prompt_of(seed + 1, tail), prefix + prompt_of(seed + 2, tail)]
    first_blocks, second_blocks = scattered_blocks(seed, [num_shared + tail] * 2)
    shared = first_blocks[:shared_blocks]
    first = Driven(
        name="first",
        token_ids=prompts[0],
        block_ids=first_blocks,
        num_output_tokens=NUM_OUTPUT_TOKENS,
    )
    second = Driven(
        name="second",
        token_ids=prompts[1],
        block_ids=[*shared, *second_blocks[shared_blocks:]],
        num_output_tokens=NUM_OUTPUT_TOKENS,
        num_computed=num_shared,
    )

    async def drive() -> None:
        await run(executor, [first])
        await run(executor, [second])

    asyncio.run(drive())
    for sequence, prompt in zip((first, second), prompts, strict=True):
        expected = reference_tokens(prompt)
        assert sequence.output_ids[: len(expected)] == expected


async def test_a_chunk_that_does_not_sample_yields_no_token(executor: TorchExecutor) -> None:
    sequence = Driven(
        name="a", token_ids=prompt_of(1, 20), block_ids=[9, 3, 5, 7, 1], num_output_tokens=1
    )
    sequence.chunk_size = 8
    await step(executor, [sequence])
    assert (sequence.outputs, sequence.num_computed) == ([], 8)
