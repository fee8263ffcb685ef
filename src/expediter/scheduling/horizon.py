"""How far a batch of decodes can run before the scheduler must look again.

Between two steps of a batch that only decodes, everything that happens is known beforehand:
each request gains a token, and one whose last block is full needs another. So many steps can
run as one, as long as nobody reaches the end and no block is needed that is not free.
"""

from bisect import bisect_right
from collections.abc import Sequence

from expediter.kvcache.manager import KVCacheManager
from expediter.scheduling.decodes import Decodes
from expediter.scheduling.output import ModelOutput
from expediter.scheduling.state import RequestState
from expediter.scheduling.step import Step


def num_safe_steps(
    states: Sequence[RequestState], *, longest: int, num_free_blocks: int, block_size: int
) -> int:
    """Of `longest` steps, those that `states` can run without a decision.

    They have slots for the first one, and the last of `longest` may be a request's last.
    """
    if len(states) * (longest // block_size + 1) <= num_free_blocks:
        return longest

    def num_new_blocks(num_steps: int) -> int:
        extra = num_steps - 1
        return sum(
            max(0, -(-(s.num_tokens + extra) // block_size) - len(s.sequence.block_ids))
            for s in states
        )

    if num_new_blocks(longest) <= num_free_blocks:
        return longest
    return bisect_right(range(1, longest + 1), num_free_blocks, key=num_new_blocks)


def advance(
    step: Step, result: ModelOutput, *, kv_cache: KVCacheManager, decodes: Decodes
) -> list[RequestState]:
    """Take in the steps that ran, each decode's as one: nobody could look in between.

    Returns who has something to tell: those of whom every token matters, those at their end, or
    everybody. Who went away while the steps ran has nothing to gain. After the last step no slots
    are taken, only who is at the end of its blocks is noted: that is the next step's to decide.
    """
    num_steps, block_size = result.num_steps, kv_cache.block_size
    gained, tells_all, states = [], step.ends_prompt, step.decodes
    if len(decodes.members) < len(states):  # else nobody left, and nobody joins within a step
        states = [state for state in states if state.is_running]
    for state in states:
        sequence = state.sequence
        state.num_computed_tokens = num_tokens = state.num_computed_tokens + num_steps
        if sequence.token_ids:
            sequence.append(result.tokens[state.request_id])
        else:
            sequence.num_tokens += num_steps
        if num_tokens % block_size < num_steps:  # a block has become full
            has_slots = kv_cache.allocate_slots(sequence, num_tokens)
            assert has_slots, "these steps were said to be safe"
            kv_cache.publish(sequence, num_tokens)
            if num_tokens % block_size == 0:
                decodes.edge.append(state)
        if num_tokens >= state.tells_from or tells_all:
            gained.append(state)
    decodes.num_steps += num_steps
    decodes.num_context_tokens += num_steps * len(decodes.members)
    return gained
