"""Requests that go on from a prompt computed elsewhere.

Each has its slots before it asks for anything. Whatever fails, its request resumes with what
has come and computes the rest, so a transfer can cost time and never an answer.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from expediter.clock import Clock
from expediter.errors import LayoutMismatch, LeaseExpired, RequestError, TransferError
from expediter.request import Request, RequestId, SampledToken
from expediter.scheduling.handover import Admission
from expediter.transfer.incoming import PullOrder, Reservation
from expediter.transfer.target import Failed, FirstToken, HandoverTarget, Taken, TargetEvent
from expediter.worker.handover.contract import HandingWorker
from expediter.worker.handover.legs import FIELD, DecodeLeg
from expediter.worker.handover.links import Link, Ways
from expediter.worker.handover.sending import prompt_digest
from expediter.worker.handover.stats import TransferStats

if TYPE_CHECKING:
    from expediter.transfer.messages import FromSource, TransferId

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Receiving:
    request: Request
    leg: DecodeLeg
    link: Link | None = None
    num_cached_tokens: int = 0  # here, before
    is_wanted: bool = True
    has_done: bool = False
    was_counted: bool = False
    source_cached_tokens: int | None = None

    @property
    def transfer_id(self) -> "TransferId":
        return self.leg.transfer_id


class Receiver:
    """Carries out what `target` decides; `flush` sends what is to be said, here or elsewhere."""

    def __init__(
        self,
        target: HandoverTarget,
        *,
        links: Ways,
        worker: HandingWorker,
        stats: TransferStats,
        clock: Clock,
        flush: Callable[[], None],
    ) -> None:
        self._target = target
        self._links = links
        self._worker = worker
        self._stats = stats
        self._clock = clock
        self._flush = flush
        self._transfers: dict[TransferId, _Receiving] = {}
        self._names: dict[RequestId, TransferId] = {}  # of those that are wanted

    def __len__(self) -> int:
        return len(self._transfers)

    def add(self, request: Request, leg: DecodeLeg) -> None:
        """It waits; RequestError if its transfer's name is another's."""
        if leg.transfer_id in self._transfers:
            raise RequestError(f"transfer {leg.transfer_id} is under way already", param=FIELD)
        self._transfers[leg.transfer_id] = _Receiving(request=request, leg=leg)
        self._names[request.request_id] = leg.transfer_id

    def drop(self, request_id: RequestId) -> None:
        """It ended, or it is not here."""
        transfer_id = self._names.pop(request_id, None)
        if transfer_id is None:
            return
        self._transfers[transfer_id].is_wanted = False
        self._target.cancel(transfer_id)
        if self._transfers[transfer_id].link is None:
            del self._transfers[transfer_id]  # nothing was asked for yet

    def admitted(self, admission: Admission) -> bool:
        """It has slots; False if it is none of these."""
        transfer_id = self._names.get(admission.request_id)
        if transfer_id is None:
            return False
        self._links.spawn(self._begin(self._transfers[transfer_id], admission))
        return True

    def receive(self, link: Link, message: "FromSource") -> None:
        """What the other worker says."""
        self._target.receive(link, message)

    def source_lost(self, link: Link) -> None:
        """The other worker cannot be talked to any more."""
        lost = TransferError(f"the connection to worker {link.engine_id} is lost")
        self._target.peer_lost(link, lost)

    def flush(self) -> None:
        """Copy, say and tell what there is to, until there is nothing."""
        while True:
            for transfer in list(self._transfers.values()):
                if order := self._target.next_pull(transfer.transfer_id):
                    self._links.spawn(self._pull(transfer, order))
            for peer, message in self._target.take_messages():
                assert isinstance(peer, Link)
                peer.connection.send(message)
            events = self._target.take_events()
            if not events:
                break
            for event in events:
                self._take_in(event)
        self._forget_ended()

    async def _begin(self, entry: _Receiving, admission: Admission) -> None:
        leg = entry.leg
        entry.num_cached_tokens = admission.num_cached_tokens
        try:
            link = await self._links.connect(leg.host, leg.port, leg.engine_id)
        except TransferError as error:
            self._worker.let_go(admission.pin)
            if entry.is_wanted:
                self._fail(entry, _reason(error, "unreachable"), error)
                self._resume(entry, admission.num_cached_tokens)
                self._forget(entry)
            return
        if not entry.is_wanted:
            self._worker.let_go(admission.pin)
            return
        entry.link = link
        link.num_users += 1
        reservation = Reservation(
            transfer_id=leg.transfer_id,
            engine_id=leg.engine_id,
            pin=admission.pin,
            num_tokens=admission.num_tokens,
            num_cached_tokens=admission.num_cached_tokens,
            prompt=prompt_digest(entry.request),
        )
        self._target.reserve(reservation, link)
        self._flush()

    async def _pull(self, entry: _Receiving, order: PullOrder) -> None:
        assert entry.link is not None, "copied before it was connected"
        started = self._clock()
        try:
            copied = await entry.link.pools.pull(order)
        except TransferError as error:
            entry.leg.report.failure = _reason(error, "copy_failed")
            self._target.pull_failed(entry.transfer_id, error)
        else:
            report = entry.leg.report
            report.seconds += self._clock() - started
            report.num_bytes += copied.num_bytes
            report.num_descriptors += copied.num_descriptors
            if not entry.has_done:
                report.hidden_bytes += copied.num_bytes
            self._target.pulled(entry.transfer_id)
        self._flush()

    def _take_in(self, event: TargetEvent) -> None:
        entry = self._transfers[event.transfer_id]
        report = entry.leg.report
        match event:
            case FirstToken():
                entry.has_done = True
                entry.source_cached_tokens = event.done.num_cached_tokens
                if entry.is_wanted and _can_use(event.done.tokens, entry):
                    report.gave_first_token = True
                    self._worker.receive_token(
                        entry.request.request_id,
                        event.done.tokens[0],
                        num_cached_tokens=event.done.num_cached_tokens,
                    )
            case Taken():
                report.num_tokens = event.num_tokens - entry.num_cached_tokens
                report.exposed_seconds = event.exposed_seconds
                self._count(entry)
                self._resume(entry, event.num_tokens)
            case Failed():
                usable = max(0, event.num_usable_tokens - entry.num_cached_tokens)
                report.num_tokens = usable
                is_lost = entry.link is not None and entry.link.is_lost
                self._fail(
                    entry,
                    _reason(event.error, "connection_lost" if is_lost else "given_up"),
                    event.error,
                )
                self._resume(entry, event.num_usable_tokens)

    def _resume(self, entry: _Receiving, num_tokens: int) -> None:
        """Its request goes on by itself; without a first token it has that to compute at least."""
        if not entry.is_wanted:
            return
        if not entry.leg.report.gave_first_token:
            num_tokens = min(num_tokens, entry.request.num_prompt_tokens - 1)
        self._worker.resume(
            entry.request.request_id,
            num_tokens=num_tokens,
            num_cached_tokens=entry.source_cached_tokens,
        )

    def _fail(self, entry: _Receiving, reason: str, error: TransferError) -> None:
        logger.warning("transfer %s failed, its prompt is computed: %s", entry.transfer_id, error)
        report = entry.leg.report
        report.failure = report.failure or reason
        self._count(entry)

    def _forget_ended(self) -> None:
        for transfer_id, entry in list(self._transfers.items()):
            if entry.link is None or self._target.stage(transfer_id) is not None:
                continue
            self._forget(entry)
            self._count(entry)
            entry.link.num_users -= 1
            entry.link.close_if_unused()

    def _count(self, entry: _Receiving) -> None:
        if not entry.was_counted:
            entry.was_counted = True
            self._stats.record(entry.leg.report)

    def _forget(self, entry: _Receiving) -> None:
        del self._transfers[entry.transfer_id]
        self._names.pop(entry.request.request_id, None)


def _reason(error: TransferError, otherwise: str) -> str:
    """A word for metrics."""
    match error:
        case LeaseExpired():
            return "lease_expired"
        case LayoutMismatch():
            return "layout_mismatch"
        case _:
            return otherwise


def _can_use(tokens: Sequence[SampledToken], entry: _Receiving) -> bool:
    """Whether the first token has all that the request wants with it."""
    if not tokens or not entry.leg.takes_first_token:
        return False
    wanted = entry.request.sampling.num_logprobs
    return wanted is None or len(tokens[0].logprobs) > wanted
