"""How the cluster reaches a simulated worker: direct calls, with a network's delays and losses.

`SimulatedClient` and `SimulatedSubscriber` are the peers of the HTTP client and of the ZeroMQ
subscriber; the dispatcher and the membership above them are the live ones.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from expediter.cluster.client import BodyKind, ForwardedRequest, ResponseHead, ResponseSink
from expediter.errors import ClusterError, RequestError, WorkerRefused, WorkerUnavailable
from expediter.kvcache.events import KVCacheEvent
from expediter.load import WorkerId
from expediter.request import Request, RequestOutput
from expediter.routing.prefix_index import PrefixIndex
from expediter.simulation.worker import SimulatedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One-way delays in seconds, and the share of KV event batches that never arrive."""

    request_seconds: float = 0.0
    response_seconds: float = 0.0
    event_seconds: float = 0.0
    event_loss: float = 0.0


class SimulatedRequest(ForwardedRequest, frozen=True, kw_only=True):
    """What goes to a simulated worker instead of bytes; `receive` is told of every output."""

    request: Request
    receive: Callable[[RequestOutput], None]


class _Inflow:
    """Nothing flows, so nothing has to be held back."""

    is_between_chunks = True

    def pause_reading(self) -> None:
        """See `Inflow`."""

    def resume_reading(self) -> None:
        """See `Inflow`."""


_INFLOW = _Inflow()


def _head(status: int) -> ResponseHead:
    return ResponseHead(status=status, reason=b"", headers=(), body=BodyKind.UNTIL_CLOSE)


class SimulatedExchange:
    """One request at one worker; the peer of `Exchange`."""

    is_empty = False

    def __init__(
        self,
        forwarded: SimulatedRequest,
        sink: ResponseSink,
        *,
        worker: SimulatedWorker,
        delay: float,
    ) -> None:
        self.status = 200
        self._request = forwarded.request
        self._receive = forwarded.receive
        self._worker = worker
        self._sink = sink
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._failure: ClusterError | None = None
        self._has_begun = False
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._has_ended = False

    def take(self, output: RequestOutput | ClusterError) -> None:
        """What the worker sends, which arrives after the network's delay."""
        if self._delay:
            self._loop.call_later(self._delay, self._arrive, output)
        else:
            self._arrive(output)

    def refuse(self, status: int) -> None:
        """The worker answers with an error."""
        self.status = status
        self._begin()
        self._end()

    async def begun(self) -> None:
        """Returns at the first byte; raises what prevents it."""
        await self._change()
        if not self._has_begun:
            assert self._failure is not None
            raise self._failure

    async def ended(self) -> None:
        """See `Exchange`."""
        if not self._has_ended:
            self._changed = self._loop.create_future()
            await self._change()
        if self._failure is not None:
            raise self._failure

    async def _change(self) -> None:
        try:
            await self._changed
        except asyncio.CancelledError:
            self._worker.abort(self._request)
            raise

    def _arrive(self, output: RequestOutput | ClusterError) -> None:
        if isinstance(output, ClusterError):
            self._failure = output
            self._has_ended = True
            self._wake()
            return
        self._receive(output)
        if not self._has_begun:
            self._begin()
        if output.finish_reason is not None:
            self._end()

    def _begin(self) -> None:
        self._has_begun = True
        self._sink.start(_head(self.status), _INFLOW)
        self._wake()

    def _end(self) -> None:
        self._has_ended = True
        self._sink.end()
        self._wake()

    def _wake(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)


class SimulatedClient:
    """The peer of the HTTP client; see `WorkerClient`."""

    def __init__(self, worker: SimulatedWorker, network: Network) -> None:
        self._worker = worker
        self._network = network

    async def send(self, request: ForwardedRequest, sink: ResponseSink) -> SimulatedExchange:
        """See `WorkerClient`; cancelling aborts the request at once."""
        assert isinstance(request, SimulatedRequest)
        if self._network.request_seconds:
            await asyncio.sleep(self._network.request_seconds)
        exchange = SimulatedExchange(
            request, sink, worker=self._worker, delay=self._network.response_seconds
        )
        try:
            self._worker.submit(request.request, exchange.take)
        except (RequestError, WorkerUnavailable) as error:
            exchange.refuse(error.status)
        await exchange.begun()
        return exchange

    async def fetch(self, path: str, *, timeout: float) -> tuple[int, bytes]:  # noqa: ARG002, ASYNC109
        """A healthy worker, of which nothing more is known."""
        if not self._worker.is_up:
            raise WorkerRefused(f"{self._worker.worker_id} is down")
        return (200, b"") if path == "/health" else (404, b"")

    def close(self) -> None:
        """There are no connections."""


class SimulatedSubscriber:
    """Hands a worker's events to the index, late or never.

    Lost batches stay lost: the worst that a publisher without replay can do.
    """

    def __init__(
        self,
        worker: SimulatedWorker,
        *,
        worker_id: WorkerId,
        index: PrefixIndex,
        network: Network,
        rng: random.Random,
    ) -> None:
        self.worker_id = worker_id
        self._worker = worker
        self._index = index
        self._network = network
        self._rng = rng
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
        if network.event_seconds:
            loop = asyncio.get_running_loop()
            loop.call_later(network.event_seconds, self._apply, events)
        else:
            self._apply(events)

    def _apply(self, events: Sequence[KVCacheEvent]) -> None:
        if not self._is_open:
            return  # closed while they were on their way
        for event in events:
            self._index.apply(self.worker_id, event)
