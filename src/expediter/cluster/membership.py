"""Who belongs to the fleet, and who of them may get requests.

Workers may come and go while requests run. One that drains gets no more requests and finishes
those it has. To remove one is to drain it first, and to drop it when it is idle or its time is up.
Whether a worker is up, its health checks tell (`watch.py`); whether it also serves, its circuit
breaker (`breaker.py`).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from expediter.clock import Clock
from expediter.cluster.breaker import CircuitBreaker
from expediter.cluster.client import WorkerClient
from expediter.cluster.handover import Dialect
from expediter.cluster.load_poll import CountOf, LoadPoll
from expediter.cluster.member import Member, Model, Subscriber, WorkerStatus
from expediter.cluster.roster import Roster
from expediter.cluster.watch import Subscribe, Watch
from expediter.config import HealthConfig, WorkerEndpoint
from expediter.errors import ClusterError, ConfigError
from expediter.load import WorkerId, WorkerRole
from expediter.routing.feedback import Learner
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.view import WorkerView

__all__ = ["Member", "Membership", "Model", "Subscribe", "Subscriber", "WorkerStatus"]

logger = logging.getLogger(__name__)

Connect = Callable[[WorkerEndpoint], WorkerClient]


class Membership:
    """The fleet; `run` keeps it up to date until cancelled."""

    def __init__(
        self,
        *,
        connect: Connect,
        index: PrefixIndex,
        interval_seconds: float,
        config: HealthConfig | None = None,
        clock: Clock = time.monotonic,
        subscribe: Subscribe | None = None,
    ) -> None:
        """`subscribe` follows a publisher in its own way; by default over ZeroMQ."""
        self._connect = connect
        self._index = index
        self._config = config or HealthConfig()
        self._clock = clock
        self._health = Watch(index, interval_seconds=interval_seconds, subscribe=subscribe)
        self._load = LoadPoll(self._config, clock=clock, learnt=self._health.tell_added)
        self._tasks: asyncio.TaskGroup | None = None
        self.members: dict[WorkerId, Member] = {}
        self._roster = Roster(self.members)
        self.ready = self._roster.ready
        self.serving = self._roster.serving
        self.is_adapter = self._roster.is_adapter
        self.has_roles = False  # whether anybody plays less than both

    @property
    def relearn_answers(self) -> int:
        """How many answers in a row it takes to distrust what is known of a worker's cache."""
        return self._config.relearn_answers

    def teach(self, learner: Learner | None) -> None:
        """Tell this policy, and no other, of workers that are here, come, go, lose their cache."""
        self._health.learner = learner
        for member in self.members.values():
            if member.health is WorkerStatus.UP:
                self._health.tell_added(member)

    def speak(self, dialect: Dialect | None) -> None:
        """Take it that workers hand KV over like this; None asks each of them."""
        self._health.dialect = dialect

    def count_known_by(self, num_requests: CountOf) -> None:
        """What a worker reports beyond these requests is others' work."""
        self._load.num_known = num_requests

    async def run(self) -> None:
        """Watch every worker, those added later too; all are dropped in the end."""
        with self._health.following():
            try:
                async with asyncio.TaskGroup() as self._tasks:
                    for member in self.members.values():
                        self._watch(member)
                    await asyncio.Event().wait()
            finally:
                self._tasks = None
                for worker_id in list(self.members):
                    self.drop(worker_id)

    def add(self, endpoint: WorkerEndpoint) -> Member:
        """Take a worker in; it gets requests once it answers. Raises ConfigError if it is known."""
        worker_id = worker_id_of(endpoint)
        if worker_id in self.members:
            raise ConfigError(f"two workers are called {worker_id!r}")
        config = self._config
        breaker = CircuitBreaker(
            num_failures=config.breaker_failures,
            open_seconds=config.breaker_open_seconds,
            max_open_seconds=config.breaker_max_open_seconds,
            clock=self._clock,
            changed=self._roster.changed,
        )
        member = Member(
            worker_id=worker_id,
            endpoint=endpoint,
            client=self._connect(endpoint),
            breaker=breaker,
            unloaded=WorkerView(worker_id=worker_id),
            changed=self._roster.changed,
            role=endpoint.role,
        )
        self.members[worker_id] = member
        self._roster.changed()
        self._see_roles()
        self._index.add_worker(worker_id)
        self._watch(member)
        return member

    def drain(self, worker_id: WorkerId) -> None:
        """No more requests for this worker; KeyError if there is none of that name."""
        self.members[worker_id].is_draining = True

    def undrain(self, worker_id: WorkerId) -> None:
        """Requests again, also for one that was about to be removed; KeyError as `drain`."""
        member = self.members[worker_id]
        if member.removal is not None:
            member.removal.cancel()
            member.removal = None
        member.is_draining = False

    async def remove(self, worker_id: WorkerId, *, drain_seconds: float | None = None) -> None:
        """Drain a worker and drop it when it is idle, or after so long (default: the config's).

        KeyError if there is none of that name.
        """
        member = self.members[worker_id]
        self.drain(worker_id)
        limit = self._config.drain_seconds if drain_seconds is None else drain_seconds
        if not await member.idle(limit):
            logger.warning(
                "%s is dropped with %d requests in flight", worker_id, member.num_in_flight
            )
        if self.members.get(worker_id) is member:
            self.drop(worker_id)

    def retire(self, worker_id: WorkerId, *, drain_seconds: float | None = None) -> None:
        """`remove` in the background, while `run` runs; `undrain` takes it back."""
        member = self.members[worker_id]
        self.drain(worker_id)
        if member.removal is None:
            assert self._tasks is not None, "only while `run` runs"
            removal = self.remove(worker_id, drain_seconds=drain_seconds)
            member.removal = self._tasks.create_task(removal)

    def drop(self, worker_id: WorkerId) -> None:
        """Forget a worker and close its connections; requests that run there are lost."""
        member = self.members.pop(worker_id)
        self._roster.changed()
        self._see_roles()
        for task in member.tasks:
            task.cancel()
        if member.removal is not None and member.removal is not asyncio.current_task():
            member.removal.cancel()
        self._health.unsubscribe(member)
        member.client.close()
        self._index.remove_worker(worker_id)
        self._health.tell_removed(member)

    def assign(self, member: Member, role: WorkerRole) -> None:
        """From now on it plays this role."""
        member.role = role
        self._see_roles()

    def suspect(self, worker_id: WorkerId, error: ClusterError) -> None:
        """A request failed there: one that refuses is down, any other is probed at once."""
        member = self.members.get(worker_id)
        if member is not None:
            self._health.suspect(member, error)

    def relearn(self, worker_id: WorkerId) -> None:
        """Forget what is taken to be cached at a worker; its events are read anew."""
        member = self.members.get(worker_id)
        if member is not None:
            self._health.relearn(member)

    def _see_roles(self) -> None:
        self.has_roles = any(m.role is not WorkerRole.BOTH for m in self.members.values())

    def _watch(self, member: Member) -> None:
        if self._tasks is not None:
            member.tasks = [
                self._tasks.create_task(self._health.follow(member)),
                self._tasks.create_task(self._load.follow(member)),
            ]


def worker_id_of(endpoint: WorkerEndpoint) -> WorkerId:
    """A worker's name: as configured, else host and port."""
    return WorkerId(endpoint.worker_id or urlsplit(endpoint.url).netloc)
