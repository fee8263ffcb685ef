"""Who is alive.

Every worker's `/health` is asked at an interval. A worker goes down after several failures in a
row, or at once when it refuses connections, and comes up again after two good answers: one slow
answer or one lucky one changes nothing. Requests that fail bring the next probe forward, so a
dead worker is noticed before its turn.

A worker that comes up, for the first time or again, is asked anew what it serves and where it
publishes its KV events, and its cache is learnt from nothing: it may be another process.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
import zmq

from expediter.cluster.client import WorkerClient
from expediter.cluster.discovery import KVEventSource, find_kv_events
from expediter.cluster.subscriber import KVEventSubscriber
from expediter.config import WorkerEndpoint
from expediter.errors import ClusterError, ConfigError, WorkerRefused
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex

logger = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
NUM_FAILURES_TO_DOWN = 3
NUM_SUCCESSES_TO_UP = 2
NUM_PROBES_PER_MODELS = 10  # how often a healthy worker is asked again for its models

Connect = Callable[[WorkerEndpoint], WorkerClient]


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


Subscribe = Callable[[KVEventSource, WorkerId], Subscriber]


class WorkerStatus(StrEnum):
    """STARTING has never answered."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"


class Model(msgspec.Struct, frozen=True):
    """The part of a model card that routing needs; an adapter has a parent."""

    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """A worker and what is known of it; only the membership changes it."""

    worker_id: WorkerId
    endpoint: WorkerEndpoint
    client: WorkerClient
    status: WorkerStatus = WorkerStatus.STARTING
    model_cards: dict[str, msgspec.Raw] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    subscribers: dict[KVEventSource, Subscriber] = field(default_factory=dict)
    num_failures: int = 0
    num_successes: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    watch: asyncio.Task[None] | None = None

    @property
    def publishes_events(self) -> bool:
        """Whether its cache is known rather than assumed."""
        return bool(self.subscribers)


class Membership:
    """The fleet; `run` keeps it up to date until cancelled."""

    def __init__(
        self,
        *,
        connect: Connect,
        index: PrefixIndex,
        interval_seconds: float,
        subscribe: Subscribe | None = None,
    ) -> None:
        """`subscribe` follows a publisher in its own way; by default over ZeroMQ."""
        self._connect = connect
        self._follow = subscribe or self._follow_zmq
        self._index = index
        self._interval = interval_seconds
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.members: dict[WorkerId, Member] = {}

    async def run(self) -> None:
        """Watch every worker, those added later too; all are dropped in the end."""
        self._context = zmq.Context()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for member in self.members.values():
                    member.watch = self._tasks.create_task(self._watch(member))
                await asyncio.Event().wait()
        finally:
            self._tasks = None
            for worker_id in list(self.members):
                self.remove(worker_id)
            self._context.term()

    def add(self, endpoint: WorkerEndpoint) -> Member:
        """Take a worker in; it gets requests once it answers. Raises ConfigError if it is known."""
        worker_id = WorkerId(endpoint.worker_id or urlsplit(endpoint.url).netloc)
        if worker_id in self.members:
            raise ConfigError(f"two workers are called {worker_id!r}")
        member = Member(worker_id=worker_id, endpoint=endpoint, client=self._connect(endpoint))
        self.members[worker_id] = member
        self._index.add_worker(worker_id)
        if self._tasks is not None:
            member.watch = self._tasks.create_task(self._watch(member))
        return member

    def remove(self, worker_id: WorkerId) -> None:
        """Drop a worker and its connections; requests that run there are lost."""
        member = self.members.pop(worker_id)
        if member.watch is not None:
            member.watch.cancel()
        self._unsubscribe(member, keep=[])
        member.client.close()
        self._index.remove_worker(worker_id)

    def ready(self) -> list[Member]:
        """The workers that may get requests."""
        return [m for m in self.members.values() if m.status is WorkerStatus.UP]

    def is_adapter(self, model: str) -> bool:
        """Whether workers say that the model is an adapter of another."""
        cards = (member.models.get(model) for member in self.members.values())
        return any(card is not None and card.parent is not None for card in cards)

    def suspect(self, worker_id: WorkerId, error: ClusterError) -> None:
        """A request failed there: one that refuses is down, any other is probed at once."""
        member = self.members.get(worker_id)
        if member is None:
            return
        if isinstance(error, WorkerRefused):
            self._failed(member, is_certain=True)
        member.wake.set()

    async def _watch(self, member: Member) -> None:
        num_probes = 0
        while True:
            member.wake.clear()
            await self._probe(member, asks_models=num_probes % NUM_PROBES_PER_MODELS == 0)
            num_probes += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await member.wake.wait()

    async def _probe(self, member: Member, *, asks_models: bool) -> None:
        try:
            status, _ = await member.client.fetch("/health", timeout=PROBE_SECONDS)
            if status >= 500:
                self._failed(member, is_certain=False)
                return
            member.num_failures = 0
            member.num_successes += 1
            if member.status is WorkerStatus.UP:
                if asks_models:
                    await _learn_models(member)
            elif self._is_back(member):
                await _learn_models(member)
                await self._subscribe(member)
                member.status = WorkerStatus.UP
                logger.info("%s is up", member.worker_id)
        except ClusterError as error:
            self._failed(member, is_certain=isinstance(error, WorkerRefused))
        except zmq.ZMQError as error:
            logger.warning("%s: its KV events cannot be followed: %s", member.worker_id, error)
            self._failed(member, is_certain=False)

    def _is_back(self, member: Member) -> bool:
        is_new = member.status is WorkerStatus.STARTING
        return member.num_successes >= (1 if is_new else NUM_SUCCESSES_TO_UP)

    def _failed(self, member: Member, *, is_certain: bool) -> None:
        member.num_successes = 0
        member.num_failures += 1
        if member.status is not WorkerStatus.UP:
            return
        if is_certain or member.num_failures >= NUM_FAILURES_TO_DOWN:
            member.status = WorkerStatus.DOWN
            self._index.clear(member.worker_id)
            logger.warning("%s is down", member.worker_id)

    async def _subscribe(self, member: Member) -> None:
        """Follow the worker's KV events, from nothing; keep what already follows them."""
        sources = await find_kv_events(member.client, member.endpoint, seconds=PROBE_SECONDS)
        self._unsubscribe(member, keep=sources)
        self._index.clear(member.worker_id)
        for rank, source in enumerate(sources):
            if source in member.subscribers:
                member.subscribers[source].resync()
                continue
            name = WorkerId(f"{member.worker_id}/{rank}") if rank else member.worker_id
            self._index.add_worker(name, part_of=member.worker_id)
            subscriber = self._follow(source, name)
            member.subscribers[source] = subscriber
            subscriber.start()

    def _follow_zmq(self, source: KVEventSource, worker_id: WorkerId) -> Subscriber:
        assert self._context is not None
        return KVEventSubscriber(
            self._context, source=source, worker_id=worker_id, index=self._index
        )

    def _unsubscribe(self, member: Member, *, keep: Sequence[KVEventSource]) -> None:
        for source in [source for source in member.subscribers if source not in keep]:
            subscriber = member.subscribers.pop(source)
            subscriber.close()
            if subscriber.worker_id != member.worker_id:
                self._index.remove_worker(subscriber.worker_id)


async def _learn_models(member: Member) -> None:
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
