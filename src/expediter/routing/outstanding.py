"""The work a gateway has given to its workers and not seen finished.

Counted here at once, because a worker's own metrics come too late: a burst would all go to
the worker that was idle a second ago. The unit is one token of prefill.
"""

from dataclasses import dataclass

import msgspec

from expediter.load import WorkerId
from expediter.routing.view import WorkerView

DECODE_TOKEN_COST = 2.0
"""One request's share of a decode step in tokens of prefill: 0.2 ms against 0.1 ms each for
the 70B model of the worked examples."""

EXPECTED_OUTPUT_TOKENS = 128
"""What an answer is taken to need when the caller's limit does not say less."""

OTHERS_TOKENS = EXPECTED_OUTPUT_TOKENS * DECODE_TOKEN_COST
"""What a request that somebody else sent is taken to need; of it only its number is known."""


class Work(msgspec.Struct, eq=False, gc=False):
    """One request at one worker: prompt tokens to compute, then tokens to generate."""

    worker_id: WorkerId
    prefill_tokens: float
    decode_tokens: float


@dataclass(slots=True, eq=False)
class _Load:
    tokens: float = 0.0
    prefill_tokens: float = 0.0
    num_requests: int = 0


class OutstandingWork:
    """Each worker's outstanding work; whoever starts a piece of work must finish it."""

    def __init__(self) -> None:
        self._loads: dict[WorkerId, _Load] = {}
        self.views: dict[WorkerId, WorkerView] = {}  # what `view` found, where it still holds

    def start(
        self, worker_id: WorkerId, *, prefill_tokens: int, max_output_tokens: int | None
    ) -> Work:
        """Add a request; `prefill_tokens` are those its worker has not cached."""
        num_output = max_output_tokens
        if not num_output or num_output > EXPECTED_OUTPUT_TOKENS:
            num_output = EXPECTED_OUTPUT_TOKENS
        decode_tokens = num_output * DECODE_TOKEN_COST
        load = self._loads.get(worker_id)
        if load is None:
            load = self._loads[worker_id] = _Load()
        if self.views:  # else nobody asks for them
            self.views.pop(worker_id, None)
        load.tokens += prefill_tokens + decode_tokens
        load.prefill_tokens += prefill_tokens
        load.num_requests += 1
        return Work(worker_id, prefill_tokens, decode_tokens)

    def prefilled(self, work: Work) -> None:
        """The first token is there, so the prompt is computed."""
        load = self._loads[work.worker_id]
        self.views.pop(work.worker_id, None)
        prefill_tokens = work.prefill_tokens
        load.tokens -= prefill_tokens
        load.prefill_tokens -= prefill_tokens
        work.prefill_tokens = 0.0

    def finish(self, work: Work) -> None:
        """Take a request off, however it ended."""
        load = self._loads[work.worker_id]
        if self.views:
            self.views.pop(work.worker_id, None)
        load.num_requests -= 1
        load.tokens -= work.prefill_tokens + work.decode_tokens
        load.prefill_tokens -= work.prefill_tokens
        if load.num_requests == 0:
            del self._loads[work.worker_id]

    def tokens(self, worker_id: WorkerId) -> float:
        """Outstanding work in tokens of prefill; 0 for a worker that has none."""
        load = self._loads.get(worker_id)
        return load.tokens if load is not None else 0.0

    def view(self, worker_id: WorkerId) -> WorkerView | None:
        """The worker as a policy sees it; None if it has nothing to do."""
        load = self._loads.get(worker_id)
        if load is None:
            return None
        view = self.views[worker_id] = WorkerView(
            worker_id=worker_id,
            load_tokens=load.tokens,
            num_requests=load.num_requests,
            prefill_tokens=load.prefill_tokens,
        )
        return view

    def prefill_tokens(self, worker_id: WorkerId) -> float:
        """The part of it that is prompts not computed yet."""
        load = self._loads.get(worker_id)
        return load.prefill_tokens if load is not None else 0.0

    def num_requests(self, worker_id: WorkerId) -> int:
        """Requests in flight at the worker."""
        load = self._loads.get(worker_id)
        return load.num_requests if load is not None else 0
