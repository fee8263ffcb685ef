"""The side that goes on from a prompt computed elsewhere.

It holds slots for the whole prompt before it asks, and a pin on them of its own, so that bytes
still arriving never land in slots that are somebody else's by then. Whatever goes wrong ends in
`Failed`, with how much of the KV is here and good; the rest can be computed. A failure is told
only when nothing is being written any more.
"""

from collections.abc import Callable
from dataclasses import dataclass

from expediter.clock import Clock
from expediter.errors import LeaseExpired, TransferError
from expediter.kvcache.pin import Pin
from expediter.transfer.handover import PeerId, Stage
from expediter.transfer.incoming import Incoming, PullOrder, Reservation
from expediter.transfer.lease import HEARTBEATS, LEASE_SECONDS
from expediter.transfer.messages import (
    Done,
    FromSource,
    FromTarget,
    Gone,
    Offer,
    Progress,
    Queued,
    Release,
    TransferId,
)

HEARTBEAT_SECONDS = LEASE_SECONDS / HEARTBEATS
SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS  # a source that answers none of three is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The source sampled the first tokens; their KV may still be on its way."""

    transfer_id: TransferId
    done: Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """All the KV is here. `exposed_seconds` passed since the source had computed it."""

    transfer_id: TransferId
    num_tokens: int
    exposed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """No more will come; the first `num_usable_tokens` tokens' KV is here."""

    transfer_id: TransferId
    error: TransferError
    num_usable_tokens: int


TargetEvent = FirstToken | Taken | Failed


class HandoverTarget:
    """All transfers to one worker. Nothing here waits, sends or copies; call `tick` now and then.

    After any call, `take_messages` says what to send and `take_events` what happened.
    """

    def __init__(
        self,
        *,
        let_go: Callable[[Pin], None],
        clock: Clock,
        block_size: int,
        num_layers: int,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._let_go = let_go
        self._clock = clock
        self._block_size = block_size
        self._num_layers = num_layers
        self._heartbeat_seconds = heartbeat_seconds
        self._silence_seconds = silence_seconds
        self._transfers: dict[TransferId, Incoming] = {}
        self._outbox: list[tuple[PeerId, FromTarget]] = []
        self._events: list[TargetEvent] = []

    def __len__(self) -> int:
        return len(self._transfers)

    def stage(self, transfer_id: TransferId) -> Stage | None:
        """Where a transfer is; None once nothing is held or left to say."""
        transfer = self._transfers.get(transfer_id)
        return transfer.stage if transfer else None

    def take_messages(self) -> list[tuple[PeerId, FromTarget]]:
        """What to send, to whom, in order."""
        taken, self._outbox = self._outbox, []
        return taken

    def take_events(self) -> list[TargetEvent]:
        """What happened, in order: at most one FirstToken and one of the others a transfer."""
        taken, self._events = self._events, []
        return taken

    def reserve(self, reservation: Reservation, peer: PeerId) -> None:
        """Slots are held: ask the source. The pin is ours from now on."""
        now = self._clock()
        assert reservation.transfer_id not in self._transfers, "reserved twice"
        transfer = Incoming(
            reservation=reservation,
            peer=peer,
            block_size=self._block_size,
            num_layers=self._num_layers,
            heard_at=now,
            next_ask=now,
        )
        self._transfers[reservation.transfer_id] = transfer
        self._ask(transfer)

    def receive(self, peer: PeerId, message: FromSource) -> None:
        """What a source says."""
        transfer = self._transfers.get(message.transfer_id)
        if transfer is None or transfer.peer != peer:
            return
        if isinstance(message, Gone):
            self._gone(transfer, message)
            return
        if transfer.has_ended:
            return
        transfer.heard_at = self._clock()
        match message:
            case Queued():
                pass
            case Offer():
                self._offered(transfer, message)
            case Progress():
                transfer.advance(message)
            case Done():
                if transfer.finish(message, self._clock()):
                    first = FirstToken(transfer_id=transfer.transfer_id, done=message)
                    self._events.append(first)
                self._check_complete(transfer)

    def next_pull(self, transfer_id: TransferId) -> PullOrder | None:
        """What to copy now, if anything; then say `pulled` or `pull_failed`, whatever happens."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            return None
        if transfer.source_blocks and self._is_too_late(transfer):
            return None
        return transfer.next_pull()

    def pulled(self, transfer_id: TransferId) -> None:
        """The bytes of the last order are here; whether they are good, the lease says."""
        transfer = self._transfers[transfer_id]
        transfer.pull_ended(is_good=self._clock() < transfer.safe_until)
        if transfer.has_ended:
            self._settle(transfer)
        elif not self._is_too_late(transfer):
            self._check_complete(transfer)
        if transfer.is_quiet and transfer.has_ended:
            self._forget(transfer)

    def pull_failed(self, transfer_id: TransferId, error: TransferError) -> None:
        """The last order could not be carried out; nothing of it is being written any more."""
        transfer = self._transfers[transfer_id]
        transfer.pull_ended(is_good=False)
        self._fail(transfer, error)
        if transfer.is_quiet and transfer.has_ended:
            self._forget(transfer)

    def cancel(self, transfer_id: TransferId) -> None:
        """Nobody wants it any more. Its slots are let go of once nothing is written to them."""
        transfer = self._transfers.get(transfer_id)
        if transfer is not None and not transfer.has_ended:
            self._stop(transfer, Stage.RELEASED)

    def fail(self, transfer_id: TransferId, error: TransferError) -> None:
        """Give up on a transfer."""
        if transfer := self._transfers.get(transfer_id):
            self._fail(transfer, error)

    def peer_lost(self, peer: PeerId, error: TransferError) -> None:
        """A source cannot be talked to any more. What it had computed can still be copied."""
        for transfer in list(self._transfers.values()):
            if transfer.peer != peer:
                continue
            transfer.is_quiet = True
            if transfer.has_ended:
                self._forget(transfer)
            elif transfer.done is None or not transfer.source_blocks:
                self._fail(transfer, error)

    def tick(self) -> None:
        """Ask again, and end what is over by now."""
        now = self._clock()
        for transfer in list(self._transfers.values()):
            if transfer.has_ended:
                self._remind(transfer, now)
            elif transfer.source_blocks and self._is_too_late(transfer):
                pass
            elif transfer.done is None and now - transfer.heard_at >= self._silence_seconds:
                self._fail(transfer, TransferError("the worker that computes the prompt is silent"))
            elif now >= transfer.next_ask:
                self._ask(transfer)

    def _ask(self, transfer: Incoming) -> None:
        now = self._clock()
        transfer.next_ask = now + self._heartbeat_seconds
        self._outbox.append((transfer.peer, transfer.attach(now)))

    def _remind(self, transfer: Incoming, now: float) -> None:
        """Tell the source again that we are through, until it answers or its lease is over."""
        if now >= transfer.safe_until and now - transfer.heard_at >= self._silence_seconds:
            self._forget(transfer)
        elif now >= transfer.next_ask:
            transfer.next_ask = now + self._heartbeat_seconds
            self._outbox.append((transfer.peer, Release(transfer_id=transfer.transfer_id)))

    def _offered(self, transfer: Incoming, offer: Offer) -> None:
        try:
            transfer.accept(offer)
        except TransferError as error:
            self._fail(transfer, error)

    def _gone(self, transfer: Incoming, message: Gone) -> None:
        if not transfer.has_ended:
            reason = message.reason or "it did not say why"
            self._fail(transfer, TransferError(f"the other worker gave up: {reason}"))
        else:
            self._forget(transfer)

    def _is_too_late(self, transfer: Incoming) -> bool:
        """Whether the lease may be over; the transfer has failed then."""
        if self._clock() < transfer.safe_until:
            return False
        self._fail(transfer, LeaseExpired("the other worker's lease was over before all was here"))
        return True

    def _check_complete(self, transfer: Incoming) -> None:
        if not transfer.is_complete or transfer.pulling is not None:
            return
        assert transfer.done_at is not None
        taken = Taken(
            transfer_id=transfer.transfer_id,
            num_tokens=transfer.reservation.num_tokens,
            exposed_seconds=self._clock() - transfer.done_at,
        )
        self._events.append(taken)
        self._stop(transfer, Stage.TAKEN)

    def _fail(self, transfer: Incoming, error: TransferError) -> None:
        if not transfer.has_ended:
            transfer.failure = error
            self._stop(transfer, Stage.EXPIRED)
        else:
            self._settle(transfer)

    def _stop(self, transfer: Incoming, stage: Stage) -> None:
        """Copy no more of it, and tell the source so."""
        transfer.stage = stage
        transfer.heard_at = self._clock()
        transfer.next_ask = transfer.heard_at + self._heartbeat_seconds
        if not transfer.is_quiet:
            self._outbox.append((transfer.peer, Release(transfer_id=transfer.transfer_id)))
        self._settle(transfer)
        if transfer.is_quiet:
            self._forget(transfer)

    def _settle(self, transfer: Incoming) -> None:
        """Once nothing is being written: let go of the slots, and say so if it failed."""
        pin = transfer.reservation.pin
        if transfer.pulling is not None or not pin.is_held:
            return
        if transfer.failure is not None:
            failed = Failed(
                transfer_id=transfer.transfer_id,
                error=transfer.failure,
                num_usable_tokens=transfer.num_usable_tokens,
            )
            self._events.append(failed)
        self._let_go(pin)

    def _forget(self, transfer: Incoming) -> None:
        """Nothing is left to say; what is still written to its slots keeps it a while."""
        transfer.safe_until, transfer.is_quiet = float("-inf"), True
        if transfer.pulling is None:
            self._transfers.pop(transfer.transfer_id, None)
