"""A step while the scheduler fills it."""

import sys
from typing import TYPE_CHECKING

from expediter.scheduling.output import PromptChunk, ScheduledChunk, SchedulerOutput, StepWork
from expediter.scheduling.state import RequestState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from expediter.kvcache.hashing import BlockHash
    from expediter.scheduling.decodes import Decodes


class Step:
    """`decodes` compute one token each; `prefills` have their number of new tokens with them.

    `budget` is what is left of it. Of the decodes, `longest` is how many steps they can run until
    one may end, and `ends_prompt` says that for one the token is the last of its prompt.
    """

    __slots__ = (
        "_block_size",
        "_num_looked_at",
        "_underway",
        "budget",
        "decodes",
        "ends_prompt",
        "longest",
        "num_context_tokens",
        "prefills",
    )

    def __init__(self, *, budget: int, block_size: int) -> None:
        self.budget = budget
        self.decodes: list[RequestState] = []
        self.num_context_tokens = 0  # of the decodes
        self.ends_prompt = False
        self.longest = sys.maxsize
        self.prefills: list[tuple[RequestState, int]] = []
        self._block_size = block_size
        self._underway: set[BlockHash] | None = None  # what the first of the prefills fill
        self._num_looked_at = 0

    def add_decodes(self, running: "Sequence[RequestState]", decodes: "Decodes") -> None:
        """Compute the newest token of each that decodes, in the order in which they run."""
        self.decodes = list(running)
        if len(decodes.members) < len(self.decodes):
            self.decodes = [state for state in running if state in decodes.members]
        self.num_context_tokens = decodes.num_context_tokens
        self.longest = decodes.num_left()
        self.budget -= len(self.decodes)

    def add_prefill(self, state: RequestState, num_new_tokens: int) -> None:
        """Compute the next tokens of a request that has slots for them."""
        self.budget -= num_new_tokens
        self.prefills.append((state, num_new_tokens))

    def is_underway(self, state: RequestState, num_cached_tokens: int) -> bool:
        """Whether a prefill of this step fills the next block of a request with such a hit."""
        names, block = state.sequence.block_hashes, num_cached_tokens // self._block_size
        return block < len(names) and self._fills(names[block])

    def _fills(self, name: "BlockHash") -> bool:
        size, underway = self._block_size, self._underway
        if underway is None:
            underway = self._underway = set()
        for state, num_new in self.prefills[self._num_looked_at :]:
            start = state.num_computed_tokens
            names = state.sequence.block_hashes[start // size : (start + num_new) // size]
            underway.update(names)
        self._num_looked_at = len(self.prefills)
        return name in underway

    def output(self, *, max_steps: int, has_chunks: bool) -> SchedulerOutput:
        """The step as the executor gets it: decodes first."""
        chunks: Sequence[ScheduledChunk] = ()
        if has_chunks:
            chunks = [_chunk(state, 1) for state in self.decodes]
            chunks += [_chunk(state, num_new) for state, num_new in self.prefills]
        num_new_tokens = num_decodes = len(self.decodes)
        num_context, prompts = self.num_context_tokens, []
        for state, num_new in self.prefills:
            num_new_tokens += num_new
            if num_new == 1:
                num_decodes += 1
                num_context += state.num_computed_tokens
            else:
                prompts.append(PromptChunk(num_new, state.num_computed_tokens))
        return SchedulerOutput(
            chunks=chunks,
            num_new_tokens=num_new_tokens,
            max_steps=max_steps,
            work=StepWork(prompts, num_decodes, num_context),
        )


def _chunk(state: RequestState, num_new_tokens: int) -> ScheduledChunk:
    start, sequence = state.num_computed_tokens, state.sequence
    return ScheduledChunk(
        request_id=state.request_id,
        token_ids=sequence.token_ids[start : start + num_new_tokens],
        num_new_tokens=num_new_tokens,
        num_computed_tokens=start,
        block_ids=sequence.block_ids[:],
        samples=start + num_new_tokens == sequence.num_tokens,
        sampling=state.request.sampling,
        output_token_ids=state.output_token_ids,
    )
