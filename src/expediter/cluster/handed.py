"""What a decode worker is sent, and how its answer is taken, after another computed the prompt."""

import asyncio

from expediter.cluster.client import (
    Exchange,
    ForwardedRequest,
    Inflow,
    ResponseHead,
    ResponseSink,
    Usage,
)
from expediter.cluster.decisions import Decision
from expediter.cluster.leg import Leg
from expediter.cluster.merging import Merging, pass_whole
from expediter.errors import ClusterError, LeaseExpired, TransferError


class Fetching:
    """A request that names blocks of another worker, which are kept for it only for some time.

    Its answer must begin within `seconds`. None is for answers that come in one piece: when they
    begin tells nothing.
    """

    def __init__(self, forwarded: ForwardedRequest, *, seconds: float | None) -> None:
        self._forwarded = forwarded
        self._seconds = seconds

    async def send(self, leg: Leg, sink: ResponseSink) -> Exchange:
        """As WorkerClient's `send`; raises TransferError, with the sink untouched, where the worker
        could not or did not fetch.

        After the time the blocks may hold something else, and no worker would notice.
        """
        guard = _Guard(sink)
        try:
            async with asyncio.timeout(self._seconds):
                exchange = await leg.member.client.send(self._forwarded, guard)
        except TimeoutError:
            raise LeaseExpired(f"no answer within {self._seconds} s") from None
        if guard.is_shut:
            leg.began(exchange)
            await exchange.ended()
            leg.succeeded(exchange)
            raise TransferError(f"the worker that was to fetch answered {exchange.status}")
        return exchange


Handed = ForwardedRequest | Fetching | Merging
"""What a decode worker gets: a request as it is, one that fetches, or one with half an answer."""


class Collected:
    """A sink that keeps a whole answer."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._head: ResponseHead | None = None
        self.status = 0

    @property
    def body(self) -> bytes:
        """What has come of it."""
        return b"".join(self._pieces)

    def placed(self, decision: Decision) -> None:
        """It is nobody's answer."""

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:  # noqa: ARG002
        """Contents only."""
        self.status, self._head = head.status, head
        return False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self._pieces.append(data)

    def end(self) -> None:
        """Nothing left to do."""

    def usage(self) -> Usage | None:
        """Nobody asks."""
        return None

    def pass_on(self, sink: ResponseSink) -> None:
        """The same answer into another sink."""
        assert self._head is not None, "there is an answer"
        pass_whole(self._head, self.body, sink, _Still())


class PrefillRefused(ClusterError):
    """The prefill worker says that the request is wrong; its answer is the client's."""

    def __init__(self, answer: Collected) -> None:
        super().__init__(f"the prefill worker answered {answer.status}")
        self.answer = answer


class _Guard:
    """Lets an answer through unless it is a 5xx."""

    def __init__(self, sink: ResponseSink) -> None:
        self._sink = sink
        self.is_shut = False
        self.placed = sink.placed
        self.usage = sink.usage

    def end(self) -> None:
        """See ResponseSink."""
        if not self.is_shut:
            self._sink.end()

    def write(self, data: bytes) -> None:
        """See ResponseSink."""
        if not self.is_shut:
            self._sink.write(data)

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:
        """See ResponseSink."""
        if head.status < 500:
            return self._sink.start(head, inflow)
        self.is_shut = True
        return False


class _Still:
    """An answer that is all there: there is nothing to hold back."""

    is_between_chunks = True

    def pause_reading(self) -> None:
        """Nothing comes."""

    def resume_reading(self) -> None:
        """Nothing came."""
