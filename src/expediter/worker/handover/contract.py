"""What a worker's loop and whoever moves KV say to each other.

The loop tells which requests got slots, which step begins and what came of it; the other side
tells the loop when a first token or KV has come. Both are plain calls on the event loop, with
no socket and no bytes in them, so a simulated transfer is as good as a real one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from expediter.kvcache.pin import Pin
from expediter.request import Request, RequestId, RequestOutput, SampledToken
from expediter.scheduling.handover import Admission
from expediter.scheduling.output import SchedulerOutput

if TYPE_CHECKING:
    from expediter.worker.handover.legs import Leg


class HandingWorker(Protocol):
    """The worker, as its hand-over sees it. Nothing happens for requests that are gone."""

    def receive_token(
        self, request_id: RequestId, token: SampledToken, *, num_cached_tokens: int
    ) -> None:
        """The first token, sampled elsewhere, where so much of the prompt was cached."""
        ...

    def resume(
        self, request_id: RequestId, *, num_tokens: int, num_cached_tokens: int | None = None
    ) -> None:
        """The first tokens' KV has come, and no more will."""
        ...

    def let_go(self, pin: Pin) -> None:
        """Nobody reads or writes these blocks from outside any more."""
        ...

    def give_up(self, request_id: RequestId) -> None:
        """Nobody waits any more for what this request computes."""
        ...


class Handover(Protocol):
    """Moves KV from and to one worker. No call waits."""

    def bind(self, worker: HandingWorker) -> None:
        """Whose KV it is; called once, before anything else."""
        ...

    def add(self, request: Request, leg: "Leg") -> None:
        """A request that sends or receives is about to wait; RequestError if it may not."""
        ...

    def drop(self, request_id: RequestId) -> None:
        """A request ended, however it did, or was aborted. Safe for any request."""
        ...

    def admitted(self, admissions: Sequence[Admission]) -> None:
        """Requests that got slots; their pins are the hand-over's to let go of."""
        ...

    def preempted(self, request_ids: Sequence[RequestId]) -> None:
        """Senders that lost their slots: what they promised will not be computed there."""
        ...

    def step_begins(self, output: SchedulerOutput) -> None:
        """Before a step runs."""
        ...

    def step_ended(self, results: Sequence[RequestOutput]) -> None:
        """A step has run; before its results are delivered."""
        ...

    async def drained(self) -> None:
        """Returns once nothing is being moved or held for others."""
        ...
