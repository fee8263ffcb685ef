"""What the operator of a gateway may ask and do, be it one process or several."""

import asyncio
from typing import Protocol, TypeVar

import msgspec

from expediter.cluster.traffic import jsonl
from expediter.config import RoutingConfig, WorkerEndpoint
from expediter.errors import ConfigError, RequestError
from expediter.gateway.gateway import Gateway
from expediter.gateway.reconfigure import redacted
from expediter.gateway.reports import Json
from expediter.load import WorkerId

Kind = TypeVar("Kind")


class UnknownWorker(RequestError):
    """There is no worker of that name."""

    status = 404
    kind = "not_found_error"


class Operator(Protocol):
    """Everything raises RequestError if what was asked cannot be done; nothing is changed then."""

    async def metrics(self) -> bytes:
        """A page for Prometheus."""
        ...

    async def readiness(self) -> Json:
        """Whether anybody can be served."""
        ...

    async def workers(self) -> list[Json]:
        """Every worker."""
        ...

    async def decisions(self, limit: int) -> list[Json]:
        """The last decisions, newest first."""
        ...

    async def trace(self, seconds: int) -> bytes:
        """The requests of the last so many seconds, in Mooncake's format."""
        ...

    async def stats(self) -> Json:
        """A snapshot for a dashboard."""
        ...

    async def activity(self) -> Json:
        """The last minutes' answers, and what their prompts shared."""
        ...

    async def config(self) -> Json:
        """The settings in force, secrets left out."""
        ...

    async def add_worker(self, endpoint: bytes) -> Json:
        """Take a worker in; `endpoint` is the JSON of a WorkerEndpoint."""
        ...

    async def remove_worker(self, worker_id: str) -> Json:
        """Drain a worker, and drop it when it is idle or its time is up."""
        ...

    async def drain(self, worker_id: str, *, drains: bool) -> Json:
        """No more requests for this worker; or requests again."""
        ...

    async def use_policy(self, changes: bytes) -> Json:
        """Place by these settings from now on; `changes` is JSON of keys of a RoutingConfig."""
        ...


class GatewayOperator:
    """Operates the gateway in this process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def metrics(self) -> bytes:
        """See Operator."""
        return self._gateway.metrics.page()

    async def readiness(self) -> Json:
        """See Operator."""
        return self._gateway.reports.readiness()

    async def workers(self) -> list[Json]:
        """See Operator."""
        return self._gateway.reports.workers()

    async def decisions(self, limit: int) -> list[Json]:
        """See Operator."""
        return self._gateway.reports.decisions(limit)

    async def trace(self, seconds: int) -> bytes:
        """See Operator."""
        recent = self._gateway.dispatcher.traffic.recent(seconds=seconds)
        # Not on the event loop: a full log takes some tenths of a second.
        return await asyncio.to_thread(jsonl, recent)

    async def stats(self) -> Json:
        """See Operator."""
        routing = self._gateway.config.routing
        return {"policy": routing.policy, **self._gateway.reports.stats()}

    async def activity(self) -> Json:
        """See Operator."""
        return self._gateway.reports.activity()

    async def config(self) -> Json:
        """See Operator."""
        return redacted(self._gateway.config)

    async def add_worker(self, endpoint: bytes) -> Json:
        """See Operator."""
        found = _decoded(endpoint, WorkerEndpoint)
        try:
            member = self._gateway.membership.add(found)
        except ConfigError as error:
            raise RequestError(str(error)) from None
        return self._gateway.reports.worker(member.worker_id)

    async def remove_worker(self, worker_id: str) -> Json:
        """See Operator."""
        name = self._known(worker_id)
        self._gateway.membership.retire(name)
        return self._gateway.reports.worker(name)

    async def drain(self, worker_id: str, *, drains: bool) -> Json:
        """See Operator."""
        name = self._known(worker_id)
        if drains:
            self._gateway.membership.drain(name)
        else:
            self._gateway.membership.undrain(name)
        return self._gateway.reports.worker(name)

    async def use_policy(self, changes: bytes) -> Json:
        """See Operator."""
        routing = self._gateway.config.routing
        tree = msgspec.to_builtins(routing) | _decoded(changes, dict[str, object])
        try:
            routing = msgspec.convert(tree, RoutingConfig)
            self._gateway.use_routing(routing)
        except (msgspec.ValidationError, ConfigError) as error:
            raise RequestError(str(error)) from None
        return redacted(routing)

    def _known(self, worker_id: str) -> WorkerId:
        if worker_id not in self._gateway.membership.members:
            raise UnknownWorker(f"there is no worker {worker_id!r}")
        return WorkerId(worker_id)


def _decoded(data: bytes, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not what is expected: {error}") from None
