"""The side that computes a prompt and holds its KV until it has been read.

The target's Attach and the request that computes come in either order, and the target may never
come: the request then ends as any other and its lease by time. Everything the source has to say
about a transfer follows from its entry here, so it can be said again to whoever asks again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from expediter.clock import Clock
from expediter.kvcache.pin import Pin
from expediter.request import SampledToken
from expediter.transfer.handover import PeerId, Stage
from expediter.transfer.lease import LeaseTable
from expediter.transfer.messages import (
    Attach,
    Done,
    EngineId,
    FromSource,
    FromTarget,
    Gone,
    Offer,
    Progress,
    Queued,
    Release,
    TransferId,
)

EXPECT_SECONDS = 10.0  # a target that attached waits so long for its request to arrive
MAX_REMEMBERED = 10_000  # transfers that ended


@dataclass(slots=True, kw_only=True)
class _Outgoing:
    transfer_id: TransferId
    stage: Stage = Stage.RESERVED
    is_announced: bool = False
    prompt: bytes = b""
    peer: PeerId | None = None
    serial: int = 0
    expected_until: float = 0.0
    num_tokens: int = 0
    num_cached_tokens: int = 0
    computed: tuple[int, int] = (0, 0)  # tokens in all layers; tokens of the newest chunk
    num_layers: int = 0  # in which the newest chunk is computed
    done: Done | None = None


class HandoverSource:
    """All transfers from one worker. Nothing here waits or sends; call `tick` now and then.

    After any call, `take_messages` says what to send and `take_abandoned` whose computing nobody
    waits for any more.
    """

    def __init__(
        self,
        engine_id: EngineId,
        *,
        leases: LeaseTable,
        num_layers: int,
        clock: Clock,
        expect_seconds: float = EXPECT_SECONDS,
    ) -> None:
        self.leases = leases
        self._engine_id = engine_id
        self._num_layers = num_layers
        self._clock = clock
        self._expect_seconds = expect_seconds
        self._transfers: dict[TransferId, _Outgoing] = {}
        self._ended: OrderedDict[TransferId, tuple[Stage, str]] = OrderedDict()
        self._outbox: list[tuple[PeerId, FromSource]] = []
        self._abandoned: list[TransferId] = []

    def __len__(self) -> int:
        return len(self._transfers)

    def stage(self, transfer_id: TransferId) -> Stage | None:
        """Where a transfer is; None if it was never heard of, or long ago."""
        if transfer := self._transfers.get(transfer_id):
            return transfer.stage
        ended = self._ended.get(transfer_id)
        return ended[0] if ended else None

    def take_messages(self) -> list[tuple[PeerId, FromSource]]:
        """What to send, to whom, in order."""
        taken, self._outbox = self._outbox, []
        return taken

    def take_abandoned(self) -> list[TransferId]:
        """Transfers whose target went away before all was computed: abort their requests."""
        taken, self._abandoned = self._abandoned, []
        return taken

    def announce(self, transfer_id: TransferId, *, prompt: bytes = b"") -> None:
        """The request that will compute it is here; it is abandoned if the target left already."""
        if transfer_id in self._ended:
            self._abandoned.append(transfer_id)
            return
        transfer = self._transfers.setdefault(transfer_id, _Outgoing(transfer_id=transfer_id))
        transfer.is_announced, transfer.prompt = True, prompt
        if transfer.peer is not None:
            self._send(transfer, Queued(transfer_id=transfer_id))

    def begin(
        self, transfer_id: TransferId, pin: Pin, *, num_tokens: int, num_cached_tokens: int = 0
    ) -> None:
        """Computing starts into `pin`'s blocks, of which the cached tokens are there already.

        The pin is ours from now on.
        """
        self.leases.grant(transfer_id, pin)
        transfer = self._transfers.get(transfer_id)
        if transfer is None:  # it ended before it began
            self.leases.release(transfer_id)
            self._abandoned.append(transfer_id)
            return
        transfer.stage = Stage.COMPUTING
        transfer.num_tokens, transfer.num_cached_tokens = num_tokens, num_cached_tokens
        transfer.computed = (num_cached_tokens, num_cached_tokens)
        if transfer.peer is not None:
            self._tell(transfer)

    def progress(self, transfer_id: TransferId, *, num_tokens: int, num_layers: int) -> None:
        """The first `num_tokens` tokens' KV is written in the first `num_layers` layers."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.stage is not Stage.COMPUTING:
            return
        in_all = num_tokens if num_layers == self._num_layers else transfer.computed[0]
        transfer.computed = (in_all, num_tokens)
        transfer.num_layers = num_layers
        if transfer.peer is not None:
            self._send(transfer, self._newest(transfer))

    def done(
        self,
        transfer_id: TransferId,
        tokens: Sequence[SampledToken],
        *,
        num_cached_tokens: int | None = None,
    ) -> None:
        """All is computed and the first tokens sampled; from now on the lease runs out."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.stage is not Stage.COMPUTING:
            return
        if self.leases.is_over(transfer_id):
            self.tick()
            return
        cached = transfer.num_cached_tokens if num_cached_tokens is None else num_cached_tokens
        transfer.stage = Stage.OFFERED
        transfer.done = Done(
            transfer_id=transfer_id, tokens=tuple(tokens), num_cached_tokens=cached
        )
        self.leases.extend(transfer_id)
        if transfer.peer is not None:
            self._send(transfer, transfer.done)

    def fail(self, transfer_id: TransferId, reason: str) -> None:
        """It will not be computed. Blocks that a target knows of stay until it lets go, or time."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            return
        is_known = transfer.peer is not None and transfer_id in self.leases
        self._end(transfer, Stage.EXPIRED, reason)
        if not is_known:
            self.leases.release(transfer_id)

    def receive(self, peer: PeerId, message: FromTarget) -> None:
        """What a target says."""
        match message:
            case Attach():
                self._attach(peer, message)
            case Release():
                self._release(peer, message.transfer_id)

    def peer_lost(self, peer: PeerId) -> None:
        """A connection broke. Its transfers last as long as their leases; it may come back."""
        for transfer in self._transfers.values():
            if transfer.peer == peer:
                transfer.peer = None

    def tick(self) -> None:
        """End what is over by now."""
        for transfer_id in self.leases.expire():
            if transfer := self._transfers.get(transfer_id):
                self._abandon(transfer)
                self._end(transfer, Stage.EXPIRED, "the lease is over")
        now = self._clock()
        for transfer in list(self._transfers.values()):
            if not transfer.is_announced and transfer.expected_until <= now:
                self._end(transfer, Stage.EXPIRED, "no request came to compute it")

    def _attach(self, peer: PeerId, message: Attach) -> None:
        transfer_id = message.transfer_id
        if refusal := self._refusal(message):
            self._outbox.append((peer, Gone(transfer_id=transfer_id, reason=refusal)))
            return
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            expected_until = self._clock() + self._expect_seconds
            transfer = _Outgoing(transfer_id=transfer_id, expected_until=expected_until)
            self._transfers[transfer_id] = transfer
        transfer.peer = peer
        transfer.serial = max(transfer.serial, message.serial)
        if transfer.stage is not Stage.RESERVED:
            self._tell(transfer)
        elif transfer.is_announced:
            self._send(transfer, Queued(transfer_id=transfer_id))

    def _refusal(self, message: Attach) -> str:
        """Why an Attach cannot be served, or nothing."""
        if message.engine_id != self._engine_id:
            return f"this is engine {self._engine_id}, not {message.engine_id}"
        if ended := self._ended.get(message.transfer_id):
            return ended[1]
        transfer = self._transfers.get(message.transfer_id)
        if transfer is None:
            return ""
        if transfer.prompt and message.prompt and transfer.prompt != message.prompt:
            return "source and target were given different prompts"
        is_held = transfer.stage is not Stage.RESERVED
        if is_held and self.leases.is_over(message.transfer_id):
            return "the lease is over"
        return ""

    def _tell(self, transfer: _Outgoing) -> None:
        """Everything there is to say about a transfer whose blocks are held, for longer now."""
        self.leases.extend(transfer.transfer_id)
        offer = Offer(
            transfer_id=transfer.transfer_id,
            serial=transfer.serial,
            block_ids=tuple(self.leases.get(transfer.transfer_id).pin.block_ids),
            num_tokens=transfer.num_tokens,
            lease_seconds=self.leases.seconds,
            num_cached_tokens=transfer.computed[0],
        )
        self._send(transfer, offer)
        self._send(transfer, transfer.done or self._newest(transfer))

    def _newest(self, transfer: _Outgoing) -> Progress:
        return Progress(
            transfer_id=transfer.transfer_id,
            num_tokens=transfer.computed[1],
            num_layers=transfer.num_layers,
        )

    def _release(self, peer: PeerId, transfer_id: TransferId) -> None:
        self.leases.release(transfer_id)
        if transfer := self._transfers.get(transfer_id):
            self._abandon(transfer)
            transfer.peer = None  # who asks gets the answer below
            self._end(transfer, Stage.RELEASED, "released")
        elif transfer_id not in self._ended:
            self._remember(transfer_id, Stage.RELEASED, "released")
        self._outbox.append((peer, Gone(transfer_id=transfer_id, reason="released")))

    def _abandon(self, transfer: _Outgoing) -> None:
        if transfer.is_announced and transfer.done is None:
            self._abandoned.append(transfer.transfer_id)

    def _end(self, transfer: _Outgoing, stage: Stage, reason: str) -> None:
        del self._transfers[transfer.transfer_id]
        self._remember(transfer.transfer_id, stage, reason)
        if transfer.peer is not None:
            self._send(transfer, Gone(transfer_id=transfer.transfer_id, reason=reason))

    def _remember(self, transfer_id: TransferId, stage: Stage, reason: str) -> None:
        self._ended[transfer_id] = (stage, reason)
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def _send(self, transfer: _Outgoing, message: FromSource) -> None:
        assert transfer.peer is not None
        self._outbox.append((transfer.peer, message))
