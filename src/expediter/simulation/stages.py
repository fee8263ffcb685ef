"""Where an answer's time went, and how long it would have taken alone."""

from expediter.results.objective import Objective
from expediter.scheduling.output import PromptChunk, StepWork
from expediter.simulation.answer import Answer
from expediter.simulation.costs import CostModel

PREFILL = "prefill"
"""Who sampled the first token, as a report of a transfer says it."""


class Stages:
    """A complete answer's times in seconds; see `report`."""

    __slots__ = (
        "decode",
        "e2e",
        "normalised",
        "prefill",
        "queueing",
        "tpot",
        "transfer",
        "ttft",
    )

    def __init__(self, answer: Answer) -> None:
        assert answer.finished_at is not None
        assert answer.first_token_at is not None
        assert answer.scheduled_at is not None
        self.queueing = _queueing(answer, answer.scheduled_at)
        self.ttft = answer.first_token_at - answer.arrived_at
        self.transfer = answer.transfer_seconds
        first_waits = answer.transfer is None or answer.transfer.first_token != PREFILL
        before = self.transfer if first_waits else 0.0
        self.prefill = self.ttft - self.queueing - before
        self.e2e = answer.finished_at - answer.arrived_at
        self.decode = self.e2e - self.ttft - (self.transfer - before)
        num_tokens = answer.num_output_tokens
        self.normalised = self.e2e / num_tokens
        self.tpot = (self.e2e - self.ttft) / (num_tokens - 1) if num_tokens > 1 else None

    def meets(self, wanted: Objective) -> bool:
        """Whether it was fast enough."""
        return wanted.is_met(ttft=self.ttft, tpot=self.tpot, e2e=self.e2e)


def _queueing(answer: Answer, scheduled_at: float) -> float:
    """Until it was taken into a batch; of a pair, at both workers."""
    if answer.transfer is None or answer.prefill_began_at is None:
        return scheduled_at - answer.arrived_at
    assert answer.prefill_ended_at is not None
    for_room = max(0.0, scheduled_at - answer.prefill_ended_at)
    return answer.prefill_began_at - answer.arrived_at + for_room


class Alone:
    """What answers take on an idle worker that holds nothing of their prompts.

    The whole prompt is one step. The steps of decoding are as many of the one in the middle,
    which is exact for costs that are linear in context.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

    def slowdown(self, answer: Answer) -> float:
        """How many times as long a complete answer took."""
        num_prompt, num_output = answer.turn.num_prompt_tokens, answer.num_output_tokens
        seconds = self._cost.seconds(StepWork(chunks=(PromptChunk(num_prompt, 0),)))
        if num_output > 1:
            middle = num_prompt + num_output // 2
            step = StepWork(num_decodes=1, num_context_tokens=middle)
            seconds += (num_output - 1) * self._cost.seconds(step)
        return Stages(answer).e2e / seconds
