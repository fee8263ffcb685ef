"""What became of one request of a workload."""

from typing import TYPE_CHECKING

from expediter.cluster.client import Inflow, ResponseHead, Usage
from expediter.cluster.decisions import Decision, TransferReport
from expediter.request import RequestOutput
from expediter.workload.turn import Turn

if TYPE_CHECKING:
    from expediter.load import WorkerId


class Answer:
    """One request's story: the sink that the dispatcher fills. Times are on the virtual clock.

    `scheduled_at` is when the worker that answered first took it into a batch. If another computed
    the prompt, that was from `prefill_began_at` to `prefill_ended_at`; then `scheduled_at` is when
    there was room for the KV at the worker that answered, and `transfer_seconds` is what was
    waited for it besides, before the first token or after.
    """

    __slots__ = (
        "arrived_at",
        "cached_tokens",
        "error",
        "finished_at",
        "first_token_at",
        "matched_tokens",
        "num_output_tokens",
        "num_tries",
        "prefill_began_at",
        "prefill_ended_at",
        "prefill_worker_id",
        "reason",
        "scheduled_at",
        "status",
        "transfer",
        "transfer_seconds",
        "turn",
        "worker_id",
    )

    def __init__(self, turn: Turn, *, now: float) -> None:
        self.turn = turn
        self.arrived_at = now
        self.worker_id: WorkerId | None = None
        self.reason = ""
        self.matched_tokens = 0
        self.num_tries = 0
        self.status = 0
        self.scheduled_at: float | None = None
        self.prefill_worker_id: WorkerId | None = None
        self.prefill_began_at: float | None = None
        self.prefill_ended_at: float | None = None
        self.transfer: TransferReport | None = None
        self.transfer_seconds = 0.0
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.cached_tokens = 0
        self.num_output_tokens = 0
        self.error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all that was asked for came."""
        return self.finished_at is not None and self.error is None and self.status == 200

    def placed(self, decision: Decision) -> None:
        """See `ResponseSink`."""
        self.worker_id = decision.worker_id
        self.reason = decision.reason
        self.prefill_worker_id = decision.prefill_worker_id
        is_pair = decision.prefill_worker_id is not None
        self.matched_tokens = (
            decision.prefill_matched_tokens if is_pair else decision.matched_tokens
        )
        self.num_tries = decision.num_tries

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:  # noqa: ARG002
        """See `ResponseSink`."""
        self.status = head.status
        return False

    def write(self, data: bytes) -> None:
        """See `ResponseSink`; simulated answers have no bytes."""

    def end(self) -> None:
        """See `ResponseSink`."""

    def usage(self) -> Usage | None:
        """See `ResponseSink`."""
        return Usage(
            prompt_tokens=self.turn.num_prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.num_output_tokens,
            transfer=self.transfer,
        )

    def prefilled(self, output: RequestOutput, *, now: float) -> None:
        """See `PairStory`."""
        self.prefill_began_at, self.prefill_ended_at = output.scheduled_time, now

    def transferred(self, report: TransferReport) -> None:
        """See `PairStory`."""
        self.transfer = report
        self.transfer_seconds = report.exposed_seconds or 0.0

    def receive(self, output: RequestOutput, now: float) -> None:
        """Tokens have come."""
        if self.first_token_at is None:
            self.first_token_at = now
            self.scheduled_at = output.scheduled_time
            self.cached_tokens = output.num_cached_tokens
        self.num_output_tokens = output.num_output_tokens
        if output.finish_reason is not None:
            self.finished_at = now
