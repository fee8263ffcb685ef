"""Whether workers are up, and what there is to know of one that comes up.

Every worker's `/health` is asked at an interval. A worker goes down after several failures in a
row, or at once when it refuses connections, and comes up again after two good answers: one slow
answer or one lucky one changes nothing. Requests that fail bring the next probe forward, so a
dead worker is noticed before its turn.

A worker that comes up, for the first time or again, is asked anew what it serves and where it
publishes its KV events, and its cache is learnt from nothing: it may be another process. Policies
that learn are told, too. One that goes and comes between two probes is noticed by its events: when
their connection is lost, every probe asks where they are, and otherwise one probe in so many.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

from expediter.cluster.discovery import KVEventSource, find_kv_events
from expediter.cluster.handover import Dialect, find_peer
from expediter.cluster.member import (
    PROBE_SECONDS,
    Member,
    Subscriber,
    WorkerStatus,
    learn_models,
)
from expediter.cluster.subscriber import KVEventSubscriber
from expediter.errors import ClusterError, WorkerRefused, WorkerUnavailable
from expediter.load import WorkerId
from expediter.routing.feedback import Learner, WorkerAdded, WorkerRemoved
from expediter.routing.prefix_index import PrefixIndex

logger = logging.getLogger(__name__)

NUM_FAILURES_TO_DOWN = 3
NUM_SUCCESSES_TO_UP = 2
NUM_PROBES_PER_MODELS = 10  # how often a healthy worker is asked for its models and publishers

Subscribe = Callable[[KVEventSource, WorkerId], Subscriber]


class Watch:
    """Probes workers and follows their KV events, within `following`."""

    def __init__(
        self, index: PrefixIndex, *, interval_seconds: float, subscribe: Subscribe | None = None
    ) -> None:
        """`subscribe` follows a publisher in its own way; by default over ZeroMQ."""
        self._index = index
        self._interval = interval_seconds
        self._subscribe = subscribe or self._subscribe_zmq
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._followed: dict[WorkerId, Member] = {}
        self._disconnected: set[WorkerId] = set()
        self.learner: Learner | None = None
        self.dialect: Dialect | None = None

    @contextmanager
    def following(self) -> Iterator[None]:
        """Events are received within; nobody may be subscribed to any more at the end."""
        self._context = zmq.Context()
        try:
            yield
        finally:
            self._context.term()

    async def follow(self, member: Member) -> None:
        """Probe a worker until cancelled."""
        loop, num_probes = asyncio.get_running_loop(), 0
        while True:
            member.wake.clear()
            await self._probe(member, asks_all=num_probes % NUM_PROBES_PER_MODELS == 0)
            num_probes += 1
            timer = loop.call_later(self._interval, member.wake.set)
            try:
                await member.wake.wait()
            finally:
                timer.cancel()

    def suspect(self, member: Member, error: ClusterError) -> None:
        """A request failed there: one that refuses is down, any other is probed at once."""
        if isinstance(error, WorkerRefused):
            self._failed(member, is_certain=True)
        member.wake.set()

    def relearn(self, member: Member) -> None:
        """Forget what is taken to be cached at a worker; its events are read anew."""
        self._forget(member)
        for subscriber in member.subscribers.values():
            subscriber.resync()
        self.tell_added(member)

    def unsubscribe(self, member: Member, *, keep: Sequence[KVEventSource] = ()) -> None:
        """Follow only these of the worker's publishers any further."""
        if not keep:
            self._followed.pop(member.worker_id, None)
            self._disconnected.discard(member.worker_id)
        for source in [source for source in member.subscribers if source not in keep]:
            subscriber = member.subscribers.pop(source)
            subscriber.close()
            if subscriber.worker_id != member.worker_id:
                self._index.remove_worker(subscriber.worker_id)

    def tell_added(self, member: Member) -> None:
        """The worker is here, with this much memory."""
        if self.learner is not None:
            capacity = member.capacity_tokens
            self.learner.observe(WorkerAdded(worker_id=member.worker_id, capacity_tokens=capacity))

    def tell_removed(self, member: Member) -> None:
        """The worker is gone, or its cache is."""
        if self.learner is not None:
            self.learner.observe(WorkerRemoved(worker_id=member.worker_id))

    async def _probe(self, member: Member, *, asks_all: bool) -> None:
        try:
            status, _ = await member.client.fetch("/health", timeout=PROBE_SECONDS)
            if status >= 500:
                self._failed(member, is_certain=False)
                return
            member.num_failures = 0
            member.num_successes += 1
            if member.health is WorkerStatus.UP:
                if asks_all:
                    await learn_models(member)
                if member.subscribers and (asks_all or member.worker_id in self._disconnected):
                    await self._look_after_events(member)
            elif _is_back(member):
                await learn_models(member)
                await self._follow_events(member)
                await self._find_peer(member)
                self._up(member)
        except WorkerUnavailable as error:
            logger.warning("%s cannot be asked: %s", member.worker_id, error)  # it is as it was
        except ClusterError as error:
            self._failed(member, is_certain=isinstance(error, WorkerRefused))
        except zmq.ZMQError as error:
            logger.warning("%s: its KV events cannot be followed: %s", member.worker_id, error)
            self._failed(member, is_certain=False)

    def _up(self, member: Member) -> None:
        member.health = WorkerStatus.UP
        member.breaker.retry_now()
        self.tell_added(member)
        logger.info("%s is up", member.worker_id)

    def _failed(self, member: Member, *, is_certain: bool) -> None:
        member.num_successes = 0
        member.num_failures += 1
        if member.health is not WorkerStatus.UP:
            return
        if is_certain or member.num_failures >= NUM_FAILURES_TO_DOWN:
            member.health = WorkerStatus.DOWN
            self._forget(member)
            logger.warning("%s is down", member.worker_id)

    def _forget(self, member: Member) -> None:
        self._index.clear(member.worker_id)
        member.forget_load()
        self.tell_removed(member)

    async def _find_peer(self, member: Member) -> None:
        """How its KV is fetched: whoever comes up again may be another process."""
        member.peer = await find_peer(
            member.client, member.endpoint, dialect=self.dialect, seconds=PROBE_SECONDS
        )

    async def _look_after_events(self, member: Member) -> None:
        """Take a worker that publishes its events elsewhere than before for another process."""
        sources = await find_kv_events(member.client, member.endpoint, seconds=PROBE_SECONDS)
        if sources and set(sources) != member.subscribers.keys():
            logger.info("%s publishes its KV events elsewhere", member.worker_id)
            self._disconnected.discard(member.worker_id)
            self._forget(member)
            self._subscribe_to(member, sources)
            await self._find_peer(member)
            self.tell_added(member)

    async def _follow_events(self, member: Member) -> None:
        """Follow the worker's KV events, from nothing; keep what already follows them."""
        sources = await find_kv_events(member.client, member.endpoint, seconds=PROBE_SECONDS)
        self._subscribe_to(member, sources)

    def _subscribe_to(self, member: Member, sources: Sequence[KVEventSource]) -> None:
        self.unsubscribe(member, keep=sources)
        self._index.clear(member.worker_id)
        self._followed[member.worker_id] = member
        for rank, source in enumerate(sources):
            if source in member.subscribers:
                member.subscribers[source].resync()
                continue
            name = WorkerId(f"{member.worker_id}/{rank}") if rank else member.worker_id
            self._index.add_worker(name, part_of=member.worker_id)
            subscriber = self._subscribe(source, name)
            member.subscribers[source] = subscriber
            subscriber.start()

    def _subscribe_zmq(self, source: KVEventSource, worker_id: WorkerId) -> Subscriber:
        assert self._context is not None
        return KVEventSubscriber(
            self._context,
            source=source,
            worker_id=worker_id,
            index=self._index,
            emptied=self._emptied,
            connected=self._connected,
        )

    def _connected(self, worker_id: WorkerId, is_connected: bool) -> None:
        """A worker's publisher is back, or gone: maybe to another port, which a probe asks now."""
        member = self._followed.get(worker_id)
        if is_connected or member is None:
            self._disconnected.discard(worker_id)
        else:
            self._disconnected.add(worker_id)
            member.wake.set()

    def _emptied(self, worker_id: WorkerId) -> None:
        """A worker is still there, with nothing cached. Of one with ranks, the first speaks."""
        member = self._followed.get(worker_id)
        if member is not None:
            self.tell_removed(member)
            self.tell_added(member)


def _is_back(member: Member) -> bool:
    is_new = member.health is WorkerStatus.STARTING
    return member.num_successes >= (1 if is_new else NUM_SUCCESSES_TO_UP)
