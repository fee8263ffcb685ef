"""Hand-overs of one live worker: both sides, their connections, and the time.

Everything happens on the event loop, between two of its turns; only bytes are copied elsewhere.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

from expediter.clock import Clock
from expediter.request import Request, RequestId, RequestOutput
from expediter.scheduling.handover import Admission
from expediter.scheduling.output import SchedulerOutput
from expediter.transfer.lease import HEARTBEATS, LeaseTable
from expediter.transfer.messages import FromSource, FromTarget
from expediter.transfer.source import HandoverSource
from expediter.transfer.target import HandoverTarget
from expediter.worker.handover.contract import HandingWorker
from expediter.worker.handover.legs import Leg, PrefillLeg
from expediter.worker.handover.links import Connection, Link, Ways
from expediter.worker.handover.pools import OwnPools
from expediter.worker.handover.receiving import Receiver
from expediter.worker.handover.sending import Address, Sender
from expediter.worker.handover.stats import TransferStats
from expediter.worker.handover.terms import LayerListener, Terms, WatchLayers

TICKS = 4  # in the time between two heartbeats


class LiveHandover:
    """See `Handover`. `open_handover` makes it."""

    def __init__(
        self,
        terms: Terms,
        *,
        pools: OwnPools,
        links: Ways,
        clock: Clock,
        wall_clock: Clock,
        watch_layers: WatchLayers | None,
    ) -> None:
        self.stats = TransferStats()
        self.terms = terms
        self._pools = pools
        self._clock = clock
        self._wall_clock = wall_clock
        self._watch_layers = watch_layers
        self._is_watching = False
        self._is_busy = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._links = links
        self._address: Address | None = None

    @property
    def num_outgoing(self) -> int:
        """Transfers to other workers that have not ended, asked for or begun."""
        return len(self._source)

    @property
    def num_incoming(self) -> int:
        """Transfers from other workers that have not ended, begun or not."""
        return len(self._receiver)

    @property
    def num_links(self) -> int:
        """Other workers whose KV can be read now."""
        return len(self._links)

    @property
    def num_leased_blocks(self) -> int:
        """Blocks held for other workers."""
        return self._source.leases.num_blocks

    @property
    def num_expired_leases(self) -> int:
        """Leases whose blocks nobody said to have read."""
        return self._source.leases.num_expired

    def description(self) -> dict[str, object]:
        """Where other workers find this one, for routers."""
        address = self.address
        return {
            "engine_id": address.engine_id,
            "host": address.host,
            "port": address.port,
            "block_size": address.block_size,
            "tp_size": address.num_ranks,
            "role": self.terms.role,
        }

    @property
    def address(self) -> Address:
        """Where other workers find this one."""
        assert self._address is not None, "does not listen yet"
        return self._address

    def bind(self, worker: HandingWorker) -> None:
        """See `Handover`."""
        self._worker = worker
        layout, terms = self._pools.layout, self.terms
        leases = LeaseTable(let_go=worker.let_go, clock=self._clock, seconds=terms.lease_seconds)
        self._source = HandoverSource(
            terms.engine_id,
            leases=leases,
            num_layers=layout.num_layers,
            clock=self._clock,
            expect_seconds=terms.patience_seconds,
        )
        self._target = HandoverTarget(
            let_go=worker.let_go,
            clock=self._clock,
            block_size=layout.block_size,
            num_layers=layout.num_layers,
            heartbeat_seconds=terms.lease_seconds / HEARTBEATS,
            silence_seconds=3 * terms.lease_seconds / HEARTBEATS,
        )
        self._sender = Sender(
            self._source,
            num_layers=layout.num_layers,
            give_up=worker.give_up,
            wall_clock=self._wall_clock,
        )
        self._receiver = Receiver(
            self._target,
            links=self._links,
            worker=worker,
            stats=self.stats,
            clock=self._clock,
            flush=self._flush,
        )

    async def start(self) -> None:
        """Listen; OSError if that cannot be."""
        terms = self.terms
        port = await self._links.listen(terms.host, terms.port, self)
        self._address = Address(
            engine_id=terms.engine_id,
            host=terms.advertised_host or terms.host,
            port=port,
            num_ranks=self._pools.num_ranks,
            block_size=self._pools.layout.block_size,
        )
        self._links.spawn(self._keep_time())

    async def close(self) -> None:
        """Hang up and listen no more."""
        if self._is_watching and self._watch_layers is not None:
            self._watch_layers(None)
        await self._links.close()

    def add(self, request: Request, leg: Leg) -> None:
        """See `Handover`."""
        if isinstance(leg, PrefillLeg):
            self._sender.add(request, leg)
        else:
            self._receiver.add(request, leg)
        self._flush()

    def drop(self, request_id: RequestId) -> None:
        """See `Handover`."""
        self._sender.drop(request_id)
        self._receiver.drop(request_id)
        self._flush()

    def admitted(self, admissions: Sequence[Admission]) -> None:
        """See `Handover`."""
        for admission in admissions:
            if not (self._sender.admitted(admission) or self._receiver.admitted(admission)):
                self._worker.let_go(admission.pin)
        if admissions:
            self._flush()

    def preempted(self, request_ids: Sequence[RequestId]) -> None:
        """See `Handover`."""
        for request_id in request_ids:
            self._sender.drop(request_id, reason="its request lost its blocks")
        if request_ids:
            self._flush()

    def step_begins(self, output: SchedulerOutput) -> None:
        """See `Handover`."""
        sends = self._sender.step_begins(output)
        if self._watch_layers is not None and sends != self._is_watching:
            self._is_watching = sends
            self._watch_layers(self._layer_listener() if sends else None)

    def step_ended(self, results: Sequence[RequestOutput]) -> None:
        """See `Handover`."""
        self._sender.step_ended(results, address=self.address)
        self._flush()

    async def drained(self) -> None:
        """See `Handover`."""
        self._flush()
        await self._is_idle.wait()

    def from_target(self, peer: Connection, message: FromTarget) -> None:
        """See `Ears`."""
        self._source.receive(peer, message)
        self._flush()

    def target_lost(self, peer: Connection) -> None:
        """See `Ears`."""
        self._source.peer_lost(peer)

    def from_source(self, link: Link, message: FromSource) -> None:
        """See `Ears`."""
        self._receiver.receive(link, message)
        self._flush()

    def source_lost(self, link: Link) -> None:
        """See `Ears`."""
        self._receiver.source_lost(link)
        self._flush()

    def _layer_listener(self) -> LayerListener:
        """For the model's thread."""
        loop = asyncio.get_running_loop()

        def listener(num_layers: int) -> None:
            loop.call_soon_threadsafe(self._layers_written, num_layers)

        return listener

    def _layers_written(self, num_layers: int) -> None:
        self._sender.layers_written(num_layers)
        self._send()

    def _flush(self) -> None:
        self._send()
        self._sender.give_up_abandoned()
        self._receiver.flush()
        is_busy = bool(len(self._source) or len(self._source.leases) or len(self._receiver))
        (self._is_busy if is_busy else self._is_idle).set()
        (self._is_idle if is_busy else self._is_busy).clear()

    def _send(self) -> None:
        for peer, message in self._source.take_messages():
            cast("Connection", peer).send(message)

    async def _keep_time(self) -> None:
        """Notice what is over by time, while there is anything that could be."""
        interval = self.terms.lease_seconds / HEARTBEATS / TICKS
        while True:
            await self._is_busy.wait()
            await asyncio.sleep(interval)
            self._source.tick()
            self._target.tick()
            self._flush()
