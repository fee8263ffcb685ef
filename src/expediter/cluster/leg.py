"""One request at one worker, accounted for from beginning to end.

A colocated request is one leg, a pair is two. What belongs to the worker is here: its outstanding
work, its circuit breaker, its health, what it is taken to have cached afterwards.
"""

import logging

import msgspec

from expediter.cluster.breaker import Ticket
from expediter.cluster.client import Exchange
from expediter.cluster.membership import Member, Membership
from expediter.errors import ClusterError, WorkerLost, WorkerSilent
from expediter.routing.outstanding import OutstandingWork, Work
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import Prompt
from expediter.routing.view import RoutedRequest

logger = logging.getLogger(__name__)

CONFIRM_SECONDS = 5.0
"""How long a prompt that a worker answered counts as cached there before its events say so.
Events of a prompt's blocks leave the worker before the answer's first byte, so they come in
milliseconds; this only has to outlast them."""

NO_FAULT = frozenset({501, 503})
"""5xx that say nothing against a worker: it cannot do this, or has no room for it now."""


class Leg(msgspec.Struct, eq=False, gc=False):
    """Say when the answer `began`, and that it `succeeded` or `failed`; `close` it in any case."""

    legs: "Legs"
    member: Member
    request: RoutedRequest
    work: Work
    ticket: Ticket

    def began(self, exchange: Exchange) -> int:
        """The first byte of the answer is there, with this status."""
        member, request, status = self.member, self.request, exchange.status
        if not exchange.is_complete:  # else all of its work is about to be taken off
            self.legs.work.prefilled(self.work)
        breaker = member.breaker
        if status >= 500 and status not in NO_FAULT:
            breaker.failed(self.ticket)
        else:
            if not breaker.is_closed:
                self.ticket = breaker.answered(self.ticket)
            if request.prompt is not None and status < 300 and not exchange.is_empty:
                self.legs.assume(member, request.prompt)
        return status

    def succeeded(self, exchange: Exchange) -> None:
        """The answer is complete."""
        breaker = self.member.breaker
        if exchange.status < 500 and (breaker.num_failures or not breaker.is_closed):
            breaker.succeeded(self.ticket)

    def failed(self, error: WorkerLost | WorkerSilent) -> None:
        """Its worker is suspected."""
        member = self.member
        name = self.request.request_id
        logger.warning("%s failed request %s: %s", member.worker_id, name, error)
        member.breaker.failed(self.ticket)
        self.legs.suspect(member, error)

    def close(self) -> None:
        """It is over, one way or another."""
        member = self.member
        if not member.breaker.is_closed:
            member.breaker.ended(self.ticket)
        member.end()
        self.legs.work.finish(self.work)


class Legs:
    """Opens legs; what they share."""

    def __init__(
        self, *, membership: Membership, index: PrefixIndex, work: OutstandingWork
    ) -> None:
        self._membership = membership
        self._index = index
        self.work = work
        self.assumed_seconds = 600.0

    def open(
        self,
        member: Member,
        request: RoutedRequest,
        *,
        prefill_tokens: int,
        max_output_tokens: int | None,
    ) -> Leg:
        """A leg, which has begun."""
        work = self.work.start(
            member.worker_id, prefill_tokens=prefill_tokens, max_output_tokens=max_output_tokens
        )
        return Leg(self, member, request, work, member.begin())

    def suspect(self, member: Member, error: ClusterError) -> None:
        """The worker failed a request."""
        self._membership.suspect(member.worker_id, error)

    def assume(self, member: Member, prompt: Prompt) -> None:
        """The worker answered, so it has the prompt's blocks."""
        is_confirmed = member.publishes_events and not prompt.is_text
        seconds = CONFIRM_SECONDS if is_confirmed else self.assumed_seconds
        self._index.assume(member.worker_id, prompt, seconds=seconds)
