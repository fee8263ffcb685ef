"""How far a batch of decodes can run before the scheduler must look again.

Between two steps of a batch that only decodes, everything that happens is known beforehand:
each request gains a token, and one whose last block is full needs another. So many steps can
run as one, as long as nobody reaches the end and no block is needed that is not free.
"""

from bisect import bisect_right
from collections.abc import Sequence

from expediter.kvcache.manager import KVCacheManager
from expediter.scheduling.output import ModelOutput
from expediter.scheduling.state import RequestState


def num_safe_steps(states: Sequence[RequestState], *, num_free_blocks: int, block_size: int) -> int:
    """Steps that `states`, which have slots for the first one, can run without a decision.

    The last of them may be a request's last. One, if a token could end a request early.
    """
    if any(state.stop_token_ids for state in states):
        return 1
    longest = min(state.max_num_tokens - state.num_tokens for state in states)

    def num_new_blocks(num_steps: int) -> int:
        extra = num_steps - 1
        return sum(
            max(0, -(-(s.num_tokens + extra) // block_size) - len(s.sequence.blocks))
            for s in states
        )

    if num_new_blocks(longest) <= num_free_blocks:
        return longest
    return bisect_right(range(1, longest + 1), num_free_blocks, key=num_new_blocks)


def fast_forward(
    states: Sequence[RequestState], result: ModelOutput, *, kv_cache: KVCacheManager
) -> None:
    """All but the last of the steps that ran: the same names and slots in the same order."""
    num_steps = result.num_steps - 1
    due = _block_ends(states, num_steps=num_steps, block_size=kv_cache.block_size)
    for state in states:
        state.sequence.append(result.tokens[state.request_id][:num_steps])
    for step, filled in due:
        for state in filled:
            kv_cache.publish(state.sequence, state.num_computed_tokens + step)
        for state in filled:
            num_tokens = state.num_computed_tokens + step + 1
            has_slot = kv_cache.allocate_slots(state.sequence, num_tokens)
            assert has_slot, "these steps were said to be safe"
    for state in states:
        state.num_computed_tokens += num_steps


def _block_ends(
    states: Sequence[RequestState], *, num_steps: int, block_size: int
) -> list[tuple[int, list[RequestState]]]:
    """The steps among the first `num_steps` that fill blocks, each with whose it fills."""
    filled: dict[int, list[RequestState]] = {}
    for state in states:
        first = block_size - state.num_computed_tokens % block_size
        for step in range(first, num_steps + 1, block_size):
            filled.setdefault(step, []).append(state)
    return sorted(filled.items(), key=lambda item: item[0])
