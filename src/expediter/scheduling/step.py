"""A step while the scheduler fills it."""

import sys
from typing import TYPE_CHECKING

from expediter.scheduling.output import PromptChunk, ScheduledChunk, SchedulerOutput, StepWork
from expediter.scheduling.state import RequestState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from expediter.kvcache.hashing import BlockHash


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
        self._underway: set[BlockHash] = set()  # what the first of the prefills fill
        self._num_looked_at = 0

    def add_prefill(self, state: RequestState, num_new_tokens: int) -> None:
        """Compute the next tokens of a request that has slots for them."""
        self.budget -= num_new_tokens
        self.prefills.append((state, num_new_tokens))

    def is_underway(self, state: RequestState, num_cached_tokens: int) -> bool:
        """Whether a prefill of this step fills the next block of a request with such a hit."""
        names, block = state.sequence.block_hashes, num_cached_tokens // self._block_size
        return block < len(names) and self._fills(names[block])

    def _fills(self, name: "BlockHash") -> bool:
        size = self._block_size
        for state, num_new in self.prefills[self._num_looked_at :]:
            start = state.num_computed_tokens
            names = state.sequence.block_hashes[start // size : (start + num_new) // size]
            self._underway.update(names)
        self._num_looked_at = len(self.prefills)
        return name in self._underway

    def output(self, *, max_steps: int, has_chunks: bool) -> SchedulerOutput:
        """The step as the executor gets it: decodes first."""
        chunks: Sequence[ScheduledChunk] = ()
        if has_chunks:
            chunks = [_chunk(state, 1) for state in self.decodes]
            chunks += [_chunk(state, num_new) for state, num_new in self.prefills]
        num_new_tokens = len(self.decodes)
        for _, num_new in self.prefills:
            num_new_tokens += num_new
        return SchedulerOutput(
            chunks=chunks, num_new_tokens=num_new_tokens, max_steps=max_steps, work=self._work()
        )

    def _work(self) -> StepWork:
        num_decodes, num_context = len(self.decodes), self.num_context_tokens
        chunks = []
        for state, num_new in self.prefills:
            if num_new == 1:
                num_decodes += 1
                num_context += state.num_computed_tokens
            else:
                chunks.append(PromptChunk(num_new, state.num_computed_tokens))
        return StepWork(chunks, num_decodes, num_context)


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
