"""A step while the scheduler fills it."""

from typing import TYPE_CHECKING

from expediter.scheduling.output import ScheduledChunk
from expediter.scheduling.state import RequestState

if TYPE_CHECKING:
    from expediter.kvcache.hashing import BlockHash


class Step:
    """`budget` is what is left of it; `names` are the blocks that its prefills compute."""

    def __init__(self, *, budget: int, block_size: int) -> None:
        self.budget = budget
        self.chunks: list[ScheduledChunk] = []
        self.names: set[BlockHash] = set()
        self.has_prefill = False
        self._block_size = block_size

    def add(self, state: RequestState, num_new_tokens: int) -> None:
        """Compute the next tokens of a request that has slots for them."""
        start = state.num_computed_tokens
        sequence = state.sequence
        self.budget -= num_new_tokens
        self.chunks.append(
            ScheduledChunk(
                request_id=state.request_id,
                token_ids=sequence.token_ids[start : start + num_new_tokens],
                num_new_tokens=num_new_tokens,
                num_computed_tokens=start,
                block_ids=sequence.block_ids[:],
                samples=num_new_tokens == state.num_remaining_tokens,
                sampling=state.request.sampling,
                output_token_ids=state.output_token_ids,
            )
        )

    def add_prefill(self, state: RequestState, num_new_tokens: int) -> None:
        """As `add`; the blocks it fills count as underway."""
        first = state.num_computed_tokens // self._block_size
        end = (state.num_computed_tokens + num_new_tokens) // self._block_size
        self.names.update(state.sequence.block_hashes[first:end])
        self.has_prefill = True
        self.add(state, num_new_tokens)
