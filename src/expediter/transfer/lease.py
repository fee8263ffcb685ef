"""Blocks promised to another worker, until a moment.

A lease holds its blocks through a `Pin`, so they are neither evicted nor overwritten while it
lasts. It ends when the other worker has what it wanted, or by time: a peer that died or was cut
off cannot keep memory. Two rules make a promise of it that needs no questions back. Nobody ends
a lease that a peer knows of before its time, except that peer. And the peer counts from the moment
it asked, which is before the lease began; by its own clock it stops earlier than the owner does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from expediter.clock import Clock
from expediter.errors import LeaseExpired
from expediter.kvcache.pin import Pin
from expediter.transfer.messages import TransferId

LEASE_SECONDS = 30.0  # vLLM's `kv_lease_duration`
HEARTBEATS = 6  # in the time of one lease; vLLM's too


@dataclass(slots=True, kw_only=True)
class KVLease:
    """`pin`'s blocks are promised until `deadline`; infinite while they are being computed."""

    pin: Pin
    deadline: float


class LeaseTable:
    """The leases one worker has given. `let_go` drops a pin; it is called once for each."""

    def __init__(
        self, *, let_go: Callable[[Pin], None], clock: Clock, seconds: float = LEASE_SECONDS
    ) -> None:
        self.seconds = seconds
        self.num_expired = 0
        self._let_go = let_go
        self._clock = clock
        self._leases: dict[TransferId, KVLease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, transfer_id: TransferId) -> bool:
        return transfer_id in self._leases

    @property
    def num_blocks(self) -> int:
        """Blocks under any lease; one that two leases hold counts twice."""
        return sum(len(lease.pin.block_ids) for lease in self._leases.values())

    def grant(self, transfer_id: TransferId, pin: Pin) -> KVLease:
        """Promise a pin's blocks for as long as it takes to compute them, and `extend` says."""
        assert transfer_id not in self._leases, f"{transfer_id} has a lease"
        lease = self._leases[transfer_id] = KVLease(pin=pin, deadline=math.inf)
        return lease

    def is_over(self, transfer_id: TransferId) -> bool:
        """Whether there is no lease, or its time is over."""
        lease = self._leases.get(transfer_id)
        return lease is None or lease.deadline <= self._clock()

    def get(self, transfer_id: TransferId) -> KVLease:
        """A lease that has not ended; else LeaseExpired."""
        lease = self._leases.get(transfer_id)
        if lease is None or self.is_over(transfer_id):
            raise LeaseExpired(f"the blocks of transfer {transfer_id} are no longer held")
        return lease

    def extend(self, transfer_id: TransferId) -> float:
        """Promise its blocks for `seconds` from now; the new deadline. Raises LeaseExpired."""
        lease = self.get(transfer_id)
        lease.deadline = self._clock() + self.seconds
        return lease.deadline

    def release(self, transfer_id: TransferId) -> bool:
        """End a lease; False, and nothing happens, if it has ended already."""
        lease = self._leases.pop(transfer_id, None)
        if lease is None:
            return False
        self._let_go(lease.pin)
        return True

    def expire(self) -> list[TransferId]:
        """End the leases whose time is over; which."""
        now = self._clock()
        over = [name for name, lease in self._leases.items() if lease.deadline <= now]
        for transfer_id in over:
            self.release(transfer_id)
        self.num_expired += len(over)
        return over
