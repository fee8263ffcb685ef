"""What the scheduler asks of a model, and what it gets back.

A step is a list of chunks: for each request, some tokens whose KV is still to compute. A
prefill chunk and a decode differ only in how many. The records are plain data with no link
to the scheduler's state, so an executor may live in another thread or another process. They are
structs, because they are made for every request in every step.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from expediter.request import RequestId, SampledToken, SamplingParams


class ScheduledChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [num_computed_tokens, num_computed_tokens + num_new_tokens) of one request.

    `token_ids` holds just those tokens (empty in simulation). Token i's KV lives in slot
    i % block_size of block `block_ids[i // block_size]`. `samples` is true when the chunk
    reaches the last known token, so its logits give the next one. `output_token_ids` is what
    the request generated so far, for penalties, `min_tokens` and seeds.
    """

    request_id: RequestId
    token_ids: Sequence[int]
    num_new_tokens: int
    num_computed_tokens: int
    block_ids: Sequence[int]
    samples: bool
    sampling: SamplingParams
    output_token_ids: Sequence[int] = ()


class PromptChunk(NamedTuple):
    """New tokens of one prompt, and how many tokens of it came before."""

    num_new_tokens: int
    num_computed_tokens: int


class StepWork(msgspec.Struct, frozen=True):
    """How much a step is: prompt chunks, and requests with one token to compute.

    `num_context_tokens` is what came before in all of the latter together.
    """

    chunks: Sequence[PromptChunk] = ()
    num_decodes: int = 0
    num_context_tokens: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """New tokens of all chunks."""
        return sum([chunk[0] for chunk in self.chunks])

    def later(self, num_steps: int) -> "StepWork":
        """The same decodes so many steps on, each with a token more a step."""
        num_decodes = self.num_decodes
        grown = self.num_context_tokens + num_steps * num_decodes
        return StepWork(self.chunks, num_decodes, grown)


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `max_steps` decode steps may run before anything could change; 1 with prefill.

    `chunks` is empty for an executor that was said to need no more than `work`.
    """

    chunks: Sequence[ScheduledChunk]
    num_new_tokens: int
    max_steps: int = 1
    work: StepWork = StepWork()


class ModelOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens sampled for each request whose chunk `samples`: one a step that ran."""

    tokens: Mapping[RequestId, Sequence[SampledToken]]
    num_steps: int = 1


class Executor(Protocol):
    """Runs steps: the model, or a simulation of its timing."""

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        """Compute the chunks; runs at least one and at most `output.max_steps` steps."""
        ...

    async def close(self) -> None:
        """Release the model; nothing may be executed afterwards."""
        ...
