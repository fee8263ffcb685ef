"""One request at one worker, accounted for from beginning to end.

A colocated request is one leg, a pair is two. What belongs to the worker is here: its outstanding
work, its circuit breaker, its health, what it is taken to have cached afterwards.
"""

import logging
from typing import Self

from expediter.cluster.client import Exchange, ForwardedRequest, ResponseSink
from expediter.cluster.membership import Member, Membership
from expediter.errors import ClusterError, WorkerLost, WorkerSilent
from expediter.routing.outstanding import OutstandingWork, Work
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.view import RoutedRequest

logger = logging.getLogger(__name__)

CONFIRM_SECONDS = 5.0
"""How long a prompt that a worker answered counts as cached there before its events say so.
Events of a prompt's blocks leave the worker before the answer's first byte, so they come in
milliseconds; this only has to outlast them."""

NO_FAULT = frozenset({501, 503})
"""5xx that say nothing against a worker: it cannot do this, or has no room for it now."""


class Leg:
    """Within a `with`: `send`, then `ended`. A worker that is lost or silent is suspected."""

    _exchange: Exchange | None = None

    def __init__(self, legs: "Legs", member: Member, request: RoutedRequest, work: Work) -> None:
        self._legs = legs
        self._member = member
        self._request = request
        self._work = work
        self.ticket = member.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        member = self._member
        if isinstance(error, WorkerLost | WorkerSilent):
            name = self._request.request_id
            logger.warning("%s failed request %s: %s", member.worker_id, name, error)
            member.breaker.failed(self.ticket)
            self._legs.suspect(member, error)
        member.breaker.ended(self.ticket)
        member.end()
        self._legs.work.finish(self._work)

    async def send(self, forwarded: ForwardedRequest, sink: ResponseSink) -> int:
        """Returns the status at the first byte of the answer; raises as WorkerClient's `send`."""
        member = self._member
        self._exchange = exchange = await member.client.send(forwarded, sink)
        status = exchange.status
        self._legs.work.prefilled(self._work)
        if status >= 500 and status not in NO_FAULT:
            member.breaker.failed(self.ticket)
        else:
            self.ticket = member.breaker.answered(self.ticket)
        if status < 300 and not exchange.is_empty:
            self._legs.assume(member, self._request)
        return status

    async def ended(self) -> None:
        """Returns when the answer is complete; raises as Exchange's `ended`."""
        assert self._exchange is not None, "only after `send`"
        await self._exchange.ended()
        if self._exchange.status < 500:
            self._member.breaker.succeeded(self.ticket)


class Legs:
    """Opens legs, and closes each however it ends."""

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
        """A leg, which has begun: it must be used in a `with` at once."""
        work = self.work.start(
            member.worker_id, prefill_tokens=prefill_tokens, max_output_tokens=max_output_tokens
        )
        return Leg(self, member, request, work)

    def suspect(self, member: Member, error: ClusterError) -> None:
        """The worker failed a request."""
        self._membership.suspect(member.worker_id, error)

    def assume(self, member: Member, request: RoutedRequest) -> None:
        """The worker answered, so it has the prompt's blocks."""
        if request.prompt is None:
            return
        is_confirmed = member.publishes_events and not request.prompt.is_text
        seconds = CONFIRM_SECONDS if is_confirmed else self.assumed_seconds
        self._index.assume(member.worker_id, request.prompt, seconds=seconds)
