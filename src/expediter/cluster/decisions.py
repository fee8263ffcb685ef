"""What was decided, and what came of it: the record that `/decisions` and metrics read."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from expediter.load import WorkerId

FETCH_FAILED = "fetch-failed"
LEASE_OVER = "lease-over"
"""Two reasons why a decode worker computed a prompt that another had computed for it."""


class TransferReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of the KV it fetched; None where it does not say.

    `exposed_seconds` passed after the prompt was computed elsewhere; the rest of the transfer ran
    beside that. `first_token` says which worker sampled it.
    """

    tokens: int | None = None
    bytes: int | None = None
    hidden_bytes: int | None = None
    seconds: float | None = None
    exposed_seconds: float | None = None
    first_token: str | None = None
    failure: str | None = None


class Decision(msgspec.Struct, eq=False, kw_only=True, gc=False):
    """One placement. Times are seconds; `status` and what follows are set as they come.

    The front door adds when the request came, when it was read and ready to be placed, and when
    its answer was complete. `prefill_worker_id` is set where two workers serve the request,
    `costs` where that was considered; `fallback` says why it came otherwise.
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
    costs: Mapping[str, float] | None = None
    prefill_worker_id: WorkerId | None = None
    prefill_matched_tokens: int = 0
    prefill_cached_tokens: int | None = None
    prefill_seconds: float | None = None
    prefill_error: str | None = None
    fallback: str | None = None
    transfer: TransferReport | None = None

    @property
    def lost_worker_id(self) -> WorkerId:
        """Of a try that failed, the worker that did."""
        if self.prefill_worker_id is not None and self.error is None:
            return self.prefill_worker_id
        return self.worker_id


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


@dataclass(slots=True)
class TransferTally:
    """Totals of the transfers that workers told of."""

    num_transfers: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    exposed_seconds: float = 0.0

    def add(self, report: TransferReport) -> None:
        """One more."""
        self.num_transfers += 1
        self.num_tokens += report.tokens or 0
        self.num_bytes += report.bytes or 0
        self.seconds += report.seconds or 0.0
        self.exposed_seconds += report.exposed_seconds or 0.0


KEPT_SECONDS = 0.1
MAX_KEPT = 50
"""Of decisions that come faster than so many in that time, the rest are counted and not kept,
unless they fail.

A thousand that are kept would be the last milliseconds of a busy gateway; so they are seconds. And
each that is kept is written to memory that has left the processor's caches, which for every request
would be 3 % of its time.
"""


class DecisionLog:
    """The last decisions, of a busy time a sample; and totals of all."""

    def __init__(self, *, capacity: int = 1000) -> None:
        self.recent: deque[Decision] = deque(maxlen=capacity)
        self._kept_since = float("-inf")
        self._num_kept = 0  # since
        self.num_by_reason: dict[str, int] = {}
        self.num_retries = 0
        self.num_retries_refused = 0  # for want of budget
        self.num_unplaced = 0
        self.num_pairs = 0
        self.num_fallbacks: Counter[str] = Counter()  # requests that should have been pairs
        self.transfers = TransferTally()
        self.workers: defaultdict[WorkerId, WorkerTally] = defaultdict(WorkerTally)

    def add(self, decision: Decision) -> None:
        """A request was placed."""
        if decision.placed_at - self._kept_since >= KEPT_SECONDS:
            self._kept_since, self._num_kept = decision.placed_at, 0
        if self._num_kept < MAX_KEPT:
            self._num_kept += 1
            self.recent.append(decision)
        num_by_reason, reason = self.num_by_reason, decision.reason
        num_by_reason[reason] = num_by_reason.get(reason, 0) + 1
        if decision.prefill_worker_id is not None:
            self.num_pairs += 1
        if decision.num_tries > 1:
            self.num_retries += 1
        self.workers[decision.worker_id].num_requests += 1

    def first_byte(self, decision: Decision, *, status: int, now: float) -> None:
        """Its worker began to answer."""
        decision.status = status
        decision.ttft = now - decision.placed_at

    def failed(self, decision: Decision, error: str) -> None:
        """Its worker did not answer, or not to the end."""
        decision.error = error
        if decision not in self.recent:
            self.recent.append(decision)
        self.workers[decision.worker_id].num_failures += 1

    def prefilled(self, decision: Decision, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Its prefill worker said how much of the prompt was cached there."""
        assert decision.prefill_worker_id is not None
        decision.prefill_cached_tokens = cached_tokens
        tally = self.workers[decision.prefill_worker_id]
        tally.prompt_tokens += prompt_tokens
        tally.predicted_cached_tokens += decision.prefill_matched_tokens
        tally.actual_cached_tokens += cached_tokens

    def fell_back(self, decision: Decision, reason: str) -> None:
        """One worker serves what two should have."""
        decision.fallback = reason
        self.num_fallbacks[reason] += 1

    def transferred(self, decision: Decision, report: TransferReport) -> None:
        """Its worker fetched KV, or tried to."""
        decision.transfer = report
        if report.failure is not None:
            self.fell_back(decision, FETCH_FAILED)
        self.transfers.add(report)

    def answered(self, decision: Decision, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Its worker said how much of the prompt was cached."""
        decision.cached_tokens = cached_tokens
        tally = self.workers[decision.worker_id]
        tally.prompt_tokens += prompt_tokens
        tally.predicted_cached_tokens += decision.matched_tokens
        tally.actual_cached_tokens += cached_tokens
