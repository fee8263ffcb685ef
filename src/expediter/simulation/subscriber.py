"""KV events of simulated workers: straight to the index, late or never."""

import asyncio
import random
from collections.abc import Sequence

from expediter.kvcache.events import KVCacheEvent
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.simulation.client import Network
from expediter.simulation.lag import Lags
from expediter.simulation.worker import SimulatedWorker


class SimulatedSubscriber:
    """The peer of the ZeroMQ subscriber: hands a worker's events to the index, late or never.

    Lost batches stay lost: the worst that a publisher without replay can do.
    """

    def __init__(
        self,
        worker: SimulatedWorker,
        *,
        worker_id: WorkerId,
        index: PrefixIndex,
        network: Network,
        lags: Lags,
        rng: random.Random,
    ) -> None:
        self.worker_id = worker_id
        self._worker = worker
        self._index = index
        self._network = network
        self._lags = lags
        self._rng = rng
        self._due = 0.0  # when the last batch that is late will be here
        self._is_open = False
        self.num_lost = 0

    def start(self) -> None:
        """See `Subscriber`."""
        self._is_open = True
        self._worker.listeners.append(self._hear)

    def resync(self) -> None:
        """See `Subscriber`; a worker that comes back holds nothing that could be learnt."""
        self._index.clear(self.worker_id)

    def close(self) -> None:
        """See `Subscriber`."""
        self._is_open = False
        self._worker.listeners.remove(self._hear)

    def _hear(self, events: Sequence[KVCacheEvent]) -> None:
        network = self._network
        if network.event_loss and self._rng.random() < network.event_loss:
            self.num_lost += 1
            return
        seconds = network.event_seconds + self._lags.of(self._worker.worker_id)
        if seconds or self._due:
            loop = asyncio.get_running_loop()
            self._due = max(self._due, loop.time() + seconds)
            loop.call_at(self._due, self._apply, events)
        else:
            self._apply(events)

    def _apply(self, events: Sequence[KVCacheEvent]) -> None:
        if not self._is_open:
            return  # closed while they were on their way
        apply, worker_id = self._index.apply, self.worker_id
        for event in events:
            apply(worker_id, event)
