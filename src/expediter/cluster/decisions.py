"""What was decided, and what came of it: the record that `/decisions` and metrics read."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from expediter.load import WorkerId


class Decision(msgspec.Struct, eq=False, kw_only=True):
    """One placement. Times are seconds; `status` and what follows are set as they come.

    The front door adds when the request came, when it was read and ready to be placed, and when
    its answer was complete.
    """

    request_id: str
    worker_id: WorkerId
    reason: str
    num_tokens: int
    matched_tokens: int
    scores: Mapping[WorkerId, float]
    placed_at: float
    num_tries: int
    status: int | None = None
    ttft: float | None = None
    is_answered: bool = False
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    arrived_at: float | None = None
    read_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True)
class WorkerTally:
    """Totals of one worker since the gateway started.

    Predicted and actual cached tokens count the same requests: those whose answer told.
    """

    num_requests: int = 0
    num_failures: int = 0
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    actual_cached_tokens: int = 0


class DecisionLog:
    """The last decisions, and totals of all."""

    def __init__(self, *, capacity: int = 1000) -> None:
        self.recent: deque[Decision] = deque(maxlen=capacity)
        self.num_by_reason: Counter[str] = Counter()
        self.num_retries = 0
        self.num_retries_refused = 0  # for want of budget
        self.num_unplaced = 0
        self.workers: dict[WorkerId, WorkerTally] = {}

    def add(self, decision: Decision) -> None:
        """A request was placed."""
        self.recent.append(decision)
        self.num_by_reason[decision.reason] += 1
        self.num_retries += decision.num_tries > 1
        self._tally(decision).num_requests += 1

    def first_byte(self, decision: Decision, *, status: int, now: float) -> None:
        """Its worker began to answer."""
        decision.status = status
        decision.ttft = now - decision.placed_at

    def failed(self, decision: Decision, error: str) -> None:
        """Its worker did not answer, or not to the end."""
        decision.error = error
        self._tally(decision).num_failures += 1

    def answered(self, decision: Decision, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Its worker said how much of the prompt was cached."""
        decision.cached_tokens = cached_tokens
        tally = self._tally(decision)
        tally.prompt_tokens += prompt_tokens
        tally.predicted_cached_tokens += decision.matched_tokens
        tally.actual_cached_tokens += cached_tokens

    def _tally(self, decision: Decision) -> WorkerTally:
        tally = self.workers.get(decision.worker_id)
        if tally is None:
            tally = self.workers[decision.worker_id] = WorkerTally()
        return tally
