"""How the cluster reaches a simulated worker: direct calls, with a network's delays.

`SimulatedClient` is the peer of the HTTP client; the dispatcher and the membership above it are
the live ones. What a worker answers to a GET is bytes, as it would be over HTTP.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from expediter.cluster.client import ForwardedRequest, ResponseSink
from expediter.errors import RequestError, WorkerRefused, WorkerSilent, WorkerUnavailable
from expediter.simulation.exchange import SimulatedExchange, SimulatedRequest
from expediter.simulation.lag import Lags
from expediter.simulation.worker import SimulatedWorker
from expediter.worker.handover.legs import KVTransferParams, Leg, leg_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from expediter.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One-way delays in seconds, and the share of KV event batches that never arrive.

    With `load_reports` workers say how busy they are when they are asked.
    """

    request_seconds: float = 0.0
    response_seconds: float = 0.0
    event_seconds: float = 0.0
    event_loss: float = 0.0
    load_reports: bool = False


class Pages(Protocol):
    """What a worker answers to GETs besides whether it is well."""

    def get(self, path: str) -> bytes | None:
        """The page, if there is one."""
        ...


class SimulatedClient:
    """The peer of the HTTP client; see `WorkerClient`."""

    def __init__(
        self, worker: SimulatedWorker, network: Network, *, lags: Lags, pages: Pages
    ) -> None:
        self._worker = worker
        self._network = network
        self._lags = lags
        self._pages = pages
        self.prepare: Callable[[Request], Awaitable[None]] | None = None
        """Awaited before a request is submitted, once it has come to the worker."""

    async def send(self, request: ForwardedRequest, sink: ResponseSink) -> SimulatedExchange:
        """See `WorkerClient`; cancelling aborts the request at once."""
        assert isinstance(request, SimulatedRequest)
        delay = self._network.request_seconds + self._lags.of(self._worker.worker_id)
        if delay:
            await asyncio.sleep(delay)
        if self.prepare is not None:
            await self.prepare(request.request)
        leg = None
        if request.params:
            request, leg = _with_leg(request)
        exchange = SimulatedExchange(
            request,
            sink,
            worker=self._worker,
            delay=self._network.response_seconds,
            lags=self._lags,
            leg=leg,
        )
        try:
            self._worker.submit(request.request, exchange.take, leg=leg)
        except (RequestError, WorkerUnavailable) as error:
            exchange.refuse(error.status)
        if not exchange.has_begun and exchange.failure is None:
            await exchange
        if exchange.failure is not None and not exchange.has_begun:
            raise exchange.failure
        return exchange

    async def fetch(self, path: str, *, timeout: float) -> tuple[int, bytes]:  # noqa: ASYNC109
        """A healthy worker's pages; it may answer too late."""
        delay = 2 * self._lags.of(self._worker.worker_id)
        if delay:
            await asyncio.sleep(min(delay, timeout))
            if delay > timeout:
                raise WorkerSilent(f"{self._worker.worker_id} did not answer in {timeout} s")
        if not self._worker.is_up:
            raise WorkerRefused(f"{self._worker.worker_id} is down")
        page = b"" if path == "/health" else self._pages.get(path)
        return (404, b"") if page is None else (200, page)

    def close(self) -> None:
        """There are no connections."""


def _with_leg(forwarded: SimulatedRequest) -> tuple[SimulatedRequest, Leg | None]:
    """The request as its worker takes it, and the half that it is."""
    params = msgspec.json.decode(forwarded.params, type=KVTransferParams)
    params.check()
    request = replace(forwarded.request, kv_flow=params.flow)
    return (
        replace(forwarded, request=request),
        leg_of(params, new_name=request.request_id, num_choices=1),
    )
