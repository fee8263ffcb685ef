"""One worker as the cluster knows it."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from expediter.cluster.breaker import CircuitBreaker, Ticket
from expediter.cluster.client import WorkerClient
from expediter.cluster.discovery import KVEventSource
from expediter.cluster.handover import KVPeer
from expediter.cluster.worker_metrics import ReportedLoad
from expediter.config import WorkerEndpoint
from expediter.load import WorkerId, WorkerRole
from expediter.routing.view import WorkerView

logger = logging.getLogger(__name__)

PROBE_SECONDS = 5.0


class Subscriber(Protocol):
    """Keeps the index in step with one publisher's events."""

    worker_id: WorkerId
    num_lost: int  # times the worker's view had to be relearnt

    def start(self) -> None:
        """Begin, from nothing."""
        ...

    def resync(self) -> None:
        """Forget what is known of the worker and learn it anew."""
        ...

    def close(self) -> None:
        """Stop; what the index knows stays as it is."""
        ...


class WorkerStatus(StrEnum):
    """STARTING has never answered; DRAINING is up and gets no more requests."""

    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"
    DOWN = "down"


class Model(msgspec.Struct, frozen=True):
    """The part of a model card that routing needs; an adapter has a parent."""

    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """A worker and what is known of it.

    Only the membership changes it, but for `begin` and `end`, which frame every request. What
    decides whether it may get any is set by properties: each time, `changed` is called.
    """

    worker_id: WorkerId
    endpoint: WorkerEndpoint
    client: WorkerClient
    breaker: CircuitBreaker
    unloaded: WorkerView  # what a policy sees that has no use for loads
    changed: Callable[[], None]
    role: WorkerRole = WorkerRole.BOTH  # changed by `Membership.assign`
    peer: KVPeer = field(default_factory=KVPeer)  # how its KV is fetched
    model_cards: dict[str, msgspec.Raw] = field(default_factory=dict)
    subscribers: dict[KVEventSource, Subscriber] = field(default_factory=dict)
    load: ReportedLoad | None = None  # what it last said, unless that is too long ago
    num_others: int = 0  # requests there that others sent, by its own count
    num_in_flight: int = 0  # requests that were sent from here
    num_failures: int = 0  # health checks in a row
    num_successes: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_idle: asyncio.Event | None = None  # where somebody waits for it
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    removal: asyncio.Task[None] | None = None
    _health: WorkerStatus = field(default=WorkerStatus.STARTING, init=False)
    _is_draining: bool = field(default=False, init=False)
    _models: Mapping[str, Model] = field(default_factory=dict, init=False)

    @property
    def health(self) -> WorkerStatus:
        """What its health checks say; it is never DRAINING."""
        return self._health

    @health.setter
    def health(self, health: WorkerStatus) -> None:
        self._health = health
        self.changed()

    @property
    def is_draining(self) -> bool:
        """Whether it gets no more requests."""
        return self._is_draining

    @is_draining.setter
    def is_draining(self, is_draining: bool) -> None:
        self._is_draining = is_draining
        self.changed()

    @property
    def models(self) -> Mapping[str, Model]:
        """What it says it serves, by name; replaced as a whole."""
        return self._models

    @models.setter
    def models(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self.changed()

    @property
    def status(self) -> WorkerStatus:
        """Its health, unless it is up and drained."""
        if self.is_draining and self.health is WorkerStatus.UP:
            return WorkerStatus.DRAINING
        return self.health

    @property
    def publishes_events(self) -> bool:
        """Whether its cache is known rather than assumed."""
        return bool(self.subscribers)

    @property
    def capacity_tokens(self) -> int | None:
        """Its KV memory, if it says."""
        return self.load.capacity_tokens if self.load is not None else None

    def forget_load(self) -> None:
        """What it said is too old, or of another process."""
        self.load = None
        self.num_others = 0

    def begin(self) -> Ticket:
        """A request is about to be sent; the ticket is its breaker's."""
        self.num_in_flight += 1
        return self.breaker.period if self.breaker.is_closed else self.breaker.begin()

    def end(self) -> None:
        """The request is over, one way or another."""
        self.num_in_flight -= 1
        if self.is_idle is not None and not self.num_in_flight:
            self.is_idle.set()

    async def idle(self, seconds: float) -> bool:
        """Returns once no request from here is left, or at the end of the time: False."""
        try:
            async with asyncio.timeout(seconds):
                while self.num_in_flight:
                    self.is_idle = self.is_idle or asyncio.Event()
                    self.is_idle.clear()
                    await self.is_idle.wait()
        except TimeoutError:
            return False
        return True


async def learn_models(member: Member) -> None:
    """Ask what the worker serves; one that does not say keeps what it said before."""
    status, body = await member.client.fetch("/v1/models", timeout=PROBE_SECONDS)
    if status != 200:
        return
    try:
        cards = msgspec.json.decode(body, type=_Models).data
        models = [msgspec.json.decode(card, type=Model) for card in cards]
    except msgspec.DecodeError:
        logger.warning("%s: its list of models cannot be read", member.worker_id)
        return
    member.models = {model.id: model for model in models}
    member.model_cards = {model.id: card for model, card in zip(models, cards, strict=True)}
