"""What a run cost its workers, and what of it was for nothing."""

from collections import Counter

import msgspec

from expediter.scheduling.output import PromptChunk, StepWork
from expediter.simulation.experiment import Run

TYPICAL_PREFILL = 4096
"""Tokens of the prefill at whose speed recomputed tokens are turned into seconds."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker over the whole run; `utilisation` is the share of time spent in steps.

    `num_requests` were answered by it, or had their prompts computed there for another.

    `num_recomputed_tokens` of the computed ones had been in its cache and were evicted.
    """

    worker_id: str
    num_requests: int
    num_prompt_tokens: int
    num_recomputed_tokens: int
    num_evicted_blocks: int
    num_preemptions: int
    num_steps: int
    utilisation: float
    transferred_bytes: int


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """What was computed again or for nothing, in the whole run.

    `recomputed_tokens` were cached once and evicted; `recomputation_seconds` is what they take in
    prefills of 4,096 tokens. `lost_prompt_tokens` were computed for answers that never became
    complete, or again after a preemption or a crash; `lost_output_tokens` belong to such answers.
    """

    recomputed_tokens: int
    recomputation_seconds: float
    lost_prompt_tokens: int
    lost_output_tokens: int
    transferred_bytes: int


def worker_reports(run: Run) -> list[WorkerReport]:
    """One a worker."""
    answered = Counter(answer.worker_id for answer in run.answers)
    answered.update(a.prefill_worker_id for a in run.answers if a.prefill_worker_id is not None)
    return [
        WorkerReport(
            worker_id=worker.worker_id,
            num_requests=answered[worker.worker_id],
            num_prompt_tokens=worker.num_prompt_tokens,
            num_recomputed_tokens=worker.num_recomputed_tokens,
            num_evicted_blocks=worker.num_evicted_blocks,
            num_preemptions=worker.num_preemptions,
            num_steps=worker.num_steps,
            utilisation=worker.busy_seconds / run.seconds if run.seconds else 0.0,
            transferred_bytes=worker.transferred_bytes,
        )
        for worker in run.workers
    ]


def waste(run: Run) -> Waste:
    """See `Waste`."""
    complete = [answer for answer in run.answers if answer.is_complete]
    needed = sum(a.turn.num_prompt_tokens - a.cached_tokens for a in complete)
    computed = sum(worker.num_prompt_tokens for worker in run.workers)
    recomputed = sum(worker.num_recomputed_tokens for worker in run.workers)
    typical = StepWork(chunks=(PromptChunk(TYPICAL_PREFILL, 0),))
    per_token = run.fleet.worker.cost.seconds(typical) / TYPICAL_PREFILL
    return Waste(
        recomputed_tokens=recomputed,
        recomputation_seconds=recomputed * per_token,
        lost_prompt_tokens=max(0, computed - needed),
        lost_output_tokens=sum(a.num_output_tokens for a in run.answers if not a.is_complete),
        transferred_bytes=sum(worker.transferred_bytes for worker in run.workers),
    )
