"""Executors over few small blocks, and requests that a test drives through them by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expediter.config import EngineConfig, KVCacheConfig
from expediter.engine.executor import TorchExecutor, load_executor
from expediter.request import RequestId, SampledToken, SamplingParams
from expediter.scheduling.output import ScheduledChunk, SchedulerOutput

BLOCK_SIZE = 4
NUM_BLOCKS = 256


def load(
    path: Path, *, dtype: Any = "float32", block_size: int = BLOCK_SIZE, **settings: Any
) -> TorchExecutor:
    """An executor over few small blocks; one thread, so that busy cores cannot stall it."""
    return load_executor(
        EngineConfig(model=str(path), dtype=dtype, device="cpu", num_threads=1, **settings),
        KVCacheConfig(block_size=block_size, num_blocks=NUM_BLOCKS),
    )


@dataclass(kw_only=True)
class Driven:
    """A request as a test drives it: `chunk_size` at most a step, blocks fixed beforehand."""

    name: str
    token_ids: list[int]
    block_ids: list[int]
    num_output_tokens: int
    chunk_size: int = 10_000
    num_computed: int = 0
    num_logprobs: int | None = None
    outputs: list[SampledToken] = field(default_factory=list)

    @property
    def output_ids(self) -> list[int]:
        return [token.token_id for token in self.outputs]

    @property
    def is_done(self) -> bool:
        return len(self.outputs) >= self.num_output_tokens

    def chunk(self) -> ScheduledChunk:
        stop = min(len(self.token_ids), self.num_computed + self.chunk_size)
        return ScheduledChunk(
            request_id=RequestId(self.name),
            token_ids=self.token_ids[self.num_computed : stop],
            num_new_tokens=stop - self.num_computed,
            num_computed_tokens=self.num_computed,
            block_ids=self.block_ids,
            samples=stop == len(self.token_ids),
            sampling=SamplingParams(
                temperature=0, max_tokens=self.num_output_tokens, num_logprobs=self.num_logprobs
            ),
            output_token_ids=self.output_ids,
        )


async def step(executor: TorchExecutor, sequences: Sequence[Driven]) -> None:
    """One step of all that are not done."""
    chunks = [sequence.chunk() for sequence in sequences]
    total = sum(chunk.num_new_tokens for chunk in chunks)
    result = await executor.execute(SchedulerOutput(chunks=chunks, num_new_tokens=total))
    for sequence, chunk in zip(sequences, chunks, strict=True):
        sequence.num_computed += chunk.num_new_tokens
        for token in result.tokens.get(chunk.request_id, ()):
            sequence.outputs.append(token)
            sequence.token_ids = [*sequence.token_ids, token.token_id]


async def run(executor: TorchExecutor, sequences: Sequence[Driven]) -> None:
    """Steps until all are done."""
    while active := [sequence for sequence in sequences if not sequence.is_done]:
        await step(executor, active)


def blocks_for(num_tokens: int, *, start: int = 0) -> list[int]:
    """Consecutive blocks that hold `num_tokens`."""
    return list(range(start, start + -(-num_tokens // BLOCK_SIZE)))
