"""What was ordered on the admin port and still holds: a process that starts again is told of it.

A process that starts knows what the file says. Orders about workers, and changes of the policy,
are kept here in the order in which they were given, at most a few for each worker; they end when
the file says something new about the same thing.
"""

from dataclasses import dataclass

import msgspec

from expediter.config import GatewayConfig
from expediter.gateway.reconfigure import endpoints_of

POLICY = "/policy"
WORKERS = "/workers"
_MORE_OF_THE_SAME = ("/drain", "/undrain")


@dataclass(frozen=True, slots=True)
class Order:
    """A request to a process's admin port."""

    method: str
    target: str
    body: bytes = b""


class StandingOrders:
    """Orders by what they are about."""

    def __init__(self) -> None:
        self._about_workers: dict[str, list[Order]] = {}
        self._routing: dict[str, object] = {}

    def keep(self, order: Order, *, worker_id: str | None) -> None:
        """It was carried out; one without a worker is about the policy."""
        if worker_id is None:
            self._routing |= msgspec.json.decode(order.body, type=dict[str, object])
            return
        before = self._about_workers.pop(worker_id, [])
        if order.method == "DELETE":
            before = []
        elif order.target.endswith(_MORE_OF_THE_SAME):
            before = [each for each in before if not each.target.endswith(_MORE_OF_THE_SAME)]
        self._about_workers[worker_id] = [*before, order]

    def all(self) -> list[Order]:
        """Those that hold, the oldest worker's first."""
        orders = [order for orders in self._about_workers.values() for order in orders]
        if self._routing:
            orders.append(Order("POST", POLICY, msgspec.json.encode(self._routing)))
        return orders

    def overrule(self, old: GatewayConfig, new: GatewayConfig) -> None:
        """The file has changed from `old` to `new`."""
        if old.routing != new.routing:
            self._routing.clear()
        before, after = endpoints_of(old), endpoints_of(new)
        for worker_id in before.keys() | after.keys():
            if before.get(worker_id) != after.get(worker_id):
                self._about_workers.pop(worker_id, None)
