"""One transfer at its target: what is there at the source, and what of it is here already.

Tokens become available layer by layer, chunk by chunk, so both are counted a layer. A layer's
block can be copied once all its tokens are there; the last block need not be full.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from expediter.errors import TransferError
from expediter.kvcache.pin import Pin
from expediter.transfer.handover import PeerId, Stage
from expediter.transfer.messages import Attach, Done, EngineId, Offer, Progress, TransferId


class PullOrder(NamedTuple):
    """Copy these blocks of the source to these of ours, in all of `layers`."""

    layers: range
    source_blocks: tuple[int, ...]
    target_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Slots for a prompt whose KV is to come: `pin`'s blocks, of which the first are filled.

    The pin is the transfer's to let go of. `prompt` digests what the KV depends on besides the
    model; the source refuses if it was given another.
    """

    transfer_id: TransferId
    engine_id: EngineId
    pin: Pin
    num_tokens: int
    num_cached_tokens: int = 0
    prompt: bytes = b""


@dataclass(slots=True, kw_only=True)
class Incoming:
    """What is known of a transfer. `safe_until` is how long its lease surely lasts."""

    reservation: Reservation
    peer: PeerId
    block_size: int
    num_layers: int
    stage: Stage = Stage.RESERVED
    serial: int = 0
    asked_at: dict[int, float] = field(default_factory=dict)  # by serial; unanswered ones
    heard_at: float
    next_ask: float
    safe_until: float = float("-inf")
    source_blocks: tuple[int, ...] = ()
    in_all_layers: int = 0  # tokens that are there at the source
    newest: dict[int, int] = field(default_factory=dict)  # layers to tokens in so many layers
    pulled: list[int] = field(default_factory=list)  # blocks that are here, a layer
    pulling: tuple[range, int] | None = None  # layers under way, and up to which block
    done: Done | None = None
    done_at: float | None = None
    failure: TransferError | None = None
    is_quiet: bool = False  # there is nobody to tell how it ended

    def __post_init__(self) -> None:
        first = self.reservation.num_cached_tokens // self.block_size
        self.pulled = [first] * self.num_layers

    @property
    def transfer_id(self) -> TransferId:
        """Both sides' name for it."""
        return self.reservation.transfer_id

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be copied, except what is under way."""
        return self.stage in (Stage.TAKEN, Stage.RELEASED, Stage.EXPIRED)

    @property
    def is_complete(self) -> bool:
        """Whether all is here."""
        return self.done is not None and min(self.pulled) == self._num_blocks

    @property
    def num_usable_tokens(self) -> int:
        """Tokens whose KV is here in every layer."""
        return min(self.reservation.num_tokens, min(self.pulled) * self.block_size)

    @property
    def _num_blocks(self) -> int:
        return -(-self.reservation.num_tokens // self.block_size)

    def attach(self, now: float) -> Attach:
        """The next question to the source; its answer says from when the lease counts."""
        self.serial += 1
        self.asked_at[self.serial] = now
        reservation = self.reservation
        return Attach(
            transfer_id=reservation.transfer_id,
            serial=self.serial,
            engine_id=reservation.engine_id,
            num_tokens=reservation.num_tokens,
            prompt=reservation.prompt,
        )

    def accept(self, offer: Offer) -> None:
        """Take in where the blocks are and until when; TransferError if they are not ours."""
        wanted = self.reservation.num_tokens
        if offer.num_tokens != wanted or len(offer.block_ids) < self._num_blocks:
            raise TransferError(
                f"{offer.num_tokens} tokens in {len(offer.block_ids)} blocks are offered, "
                f"{wanted} are wanted"
            )
        asked_at = self.asked_at.get(offer.serial)
        if asked_at is not None:
            self.safe_until = max(self.safe_until, asked_at + offer.lease_seconds)
            self.asked_at = {s: at for s, at in self.asked_at.items() if s >= offer.serial}
        self.source_blocks = offer.block_ids
        self.in_all_layers = max(self.in_all_layers, offer.num_cached_tokens)
        if self.stage is Stage.RESERVED:
            self.stage = Stage.COMPUTING if self.done is None else Stage.PULLING

    def advance(self, progress: Progress) -> None:
        """Take in what is computed."""
        if progress.num_layers >= self.num_layers:
            self.in_all_layers = max(self.in_all_layers, progress.num_tokens)
            return
        known = self.newest.get(progress.num_layers, 0)
        self.newest[progress.num_layers] = max(known, progress.num_tokens)

    def finish(self, done: Done, now: float) -> bool:
        """Take in that all is computed; False if that was known."""
        if self.done is not None:
            return False
        self.done, self.done_at = done, now
        self.in_all_layers = self.reservation.num_tokens
        if self.stage is Stage.COMPUTING:
            self.stage = Stage.PULLING
        return True

    def next_pull(self) -> PullOrder | None:
        """What can be copied now, marked as under way: layers that are equally far."""
        if self.pulling is not None or not self.source_blocks or self.has_ended:
            return None
        ready = self._ready_blocks()
        for layer in range(self.num_layers):
            start, end = self.pulled[layer], ready[layer]
            if start < end:
                stop = layer + 1
                while stop < self.num_layers and (self.pulled[stop], ready[stop]) == (start, end):
                    stop += 1
                self.pulling = (range(layer, stop), end)
                own = self.reservation.pin.block_ids
                return PullOrder(
                    range(layer, stop), self.source_blocks[start:end], tuple(own[start:end])
                )
        return None

    def pull_ended(self, *, is_good: bool) -> None:
        """What was under way is here, or is not to be trusted."""
        if self.pulling is not None and is_good:
            layers, end = self.pulling
            for layer in layers:
                self.pulled[layer] = end
        self.pulling = None

    def _ready_blocks(self) -> list[int]:
        """Blocks that are complete at the source, a layer."""
        tokens = [self.in_all_layers] * self.num_layers
        for num_layers, num_tokens in self.newest.items():
            for layer in range(num_layers):
                tokens[layer] = max(tokens[layer], num_tokens)
        wanted = self.reservation.num_tokens
        return [
            self._num_blocks if count >= wanted else count // self.block_size for count in tokens
        ]
