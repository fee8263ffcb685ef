"""Moving KV between simulated workers: bytes over shared bandwidth, on the virtual clock.

Each worker sends and receives over NVLink to workers of its node and over its GPUs' NICs to all
others. The shards of a tensor-parallel worker move side by side, one GPU to one GPU, so a
worker's bandwidth is that of its GPUs, or NICs, together. Datasheets count both directions:
NVLink's 900 GB/s on an H100 are 450 one way, which is what is meant here.
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from expediter.errors import TransferError
from expediter.load import WorkerId
from expediter.simulation.flows import Flow, Flows, Link

GB = 1e9
_INSTANT = 1e-9  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """What one worker has; bytes a second are one way, of one GPU or one NIC.

    `latency` is what a transfer takes before its first byte: a handshake and the first message.
    """

    num_gpus: int = 8
    nvlink_bandwidth: float = 450 * GB
    nvlink_latency: float = 0.0
    num_nics: int = 8
    nic_bandwidth: float = 50 * GB
    nic_latency: float = 0.0


class SimulatedLinks:
    """Transfers between workers; those at the same time share what links they have in common.

    `failure_share` of the transfers break, each at a random point on its way.
    """

    def __init__(
        self,
        node_of: Mapping[WorkerId, str],
        interconnect: Interconnect,
        *,
        failure_share: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        """`node_of` names every worker's node; `rng` is needed if some are to fail."""
        self._node_of = node_of
        self._interconnect = interconnect
        self._failure_share = failure_share
        self._rng = rng or random.Random(0)
        self._flows = Flows(_bandwidths(node_of, interconnect))
        self._arrivals: dict[Flow, asyncio.Future[None]] = {}
        self._cut: Counter[WorkerId] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self.num_transfers = 0  # that arrived
        self.num_failures = 0
        self.num_bytes = 0  # of those that arrived
        self.received_bytes: Counter[WorkerId] = Counter()  # the same, by target

    def latency(self, source: WorkerId, target: WorkerId) -> float:
        """Seconds until the first byte has arrived."""
        there = self._interconnect
        return there.nvlink_latency if self._are_near(source, target) else there.nic_latency

    async def transfer(
        self,
        source: WorkerId,
        target: WorkerId,
        num_bytes: int,
        *,
        ready_at: float | None = None,
    ) -> None:
        """Returns when the last byte has arrived; TransferError if the way breaks before.

        The bytes are written evenly until `ready_at`, if that is still to come, and flow no
        faster. When cancelled, it gives up its share at once.
        """
        kind = "nvlink" if self._are_near(source, target) else "nic"
        latency = self.latency(source, target)
        await asyncio.sleep(latency)
        for worker_id in (source, target):
            if self._cut[worker_id]:
                self.num_failures += 1
                raise TransferError(f"{worker_id} cannot be reached")
        breaks = self._failure_share > 0 and self._rng.random() < self._failure_share
        links = ((kind, "out", source), (kind, "in", target))
        await self._arrival(
            links,
            num_bytes * self._rng.random() if breaks else num_bytes,
            ready_at=ready_at + latency if ready_at is not None else 0.0,
        )
        if breaks:
            self.num_failures += 1
            raise TransferError(f"the transfer from {source} to {target} broke")
        self.num_transfers += 1
        self.num_bytes += num_bytes
        self.received_bytes[target] += num_bytes

    def cut(self, worker_id: WorkerId) -> None:
        """Break all transfers to and from a worker, and all to come until it is mended.

        What is cut twice must be mended twice.
        """
        self._cut[worker_id] += 1
        for kind in ("nvlink", "nic"):
            for way in ("out", "in"):
                for flow in self._flows.crossing((kind, way, worker_id)):
                    self._flows.stop(flow, now=self._now)
                    arrival = self._arrivals.pop(flow)
                    if not arrival.done():  # it is if the transfer is cancelled at this instant
                        self.num_failures += 1
                        lost = f"{worker_id} was lost during a transfer"
                        arrival.set_exception(TransferError(lost))
        self._schedule()

    def mend(self, worker_id: WorkerId) -> None:
        """Let a worker be reached again."""
        self._cut[worker_id] -= 1

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _are_near(self, source: WorkerId, target: WorkerId) -> bool:
        return self._node_of[source] == self._node_of[target]

    async def _arrival(self, links: tuple[Link, ...], num_bytes: float, *, ready_at: float) -> None:
        loop, left = asyncio.get_running_loop(), ready_at - self._now
        limit = num_bytes / left if left > _INSTANT else math.inf
        flow = self._flows.start(links, num_bytes, now=self._now, limit=limit)
        timer = loop.call_at(ready_at, self._unlimit, flow) if limit < math.inf else None
        self._arrivals[flow] = arrival = loop.create_future()
        self._schedule()
        try:
            await arrival
        finally:
            if timer is not None:
                timer.cancel()
            if self._arrivals.pop(flow, None) is not None:  # cancelled on its way
                self._flows.stop(flow, now=self._now)
                self._schedule()

    def _unlimit(self, flow: Flow) -> None:
        """All of its bytes are written."""
        self._flows.unlimit(flow, now=self._now)
        self._schedule()

    def _schedule(self) -> None:
        """Wake up when the next transfer will have arrived, as things stand."""
        if self._timer is not None:
            self._timer.cancel()
        end = self._flows.next_end()
        loop = asyncio.get_running_loop()
        self._timer = None if end is None else loop.call_at(end, self._deliver)

    def _deliver(self) -> None:
        for flow in self._flows.take_ended(now=self._now):
            arrival = self._arrivals.pop(flow)
            if not arrival.done():
                arrival.set_result(None)
        self._schedule()


def _bandwidths(node_of: Mapping[WorkerId, str], there: Interconnect) -> dict[Link, float]:
    of_kind = {
        "nvlink": there.num_gpus * there.nvlink_bandwidth,
        "nic": there.num_nics * there.nic_bandwidth,
    }
    return {
        (kind, way, worker_id): bandwidth
        for worker_id in node_of
        for kind, bandwidth in of_kind.items()
        for way in ("out", "in")
    }
