"""How simulated workers reach each other: the peers of TCP connections and of mapped pools.

Both halves of a hand-over, their messages and leases are the live ones (`worker/handover`). Here
a message is a call on the loop, and a pull is bytes over `links`, which last as long as it takes
until the last of them is computed.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from expediter.errors import TransferError
from expediter.load import WorkerId
from expediter.simulation.lag import Lags
from expediter.simulation.links import SimulatedLinks
from expediter.transfer.incoming import PullOrder
from expediter.transfer.messages import EngineId, FromSource, FromTarget, Hello, Message
from expediter.worker.handover.links import Ears, Link, Spawn
from expediter.worker.handover.pools import Copied

PORT = 1  # there is one at each worker, and nobody looks at it


class Writes(Protocol):
    """A worker's memory, as far as its running step writes to it."""

    def written_at(self, block_ids: Sequence[int]) -> float | None:
        """When the step that fills the last of these blocks will be over; None if it is."""
        ...


class Neighbourhood:
    """Every worker that can be connected to, by its host's name, which is the worker's."""

    def __init__(self, links: SimulatedLinks, *, lags: Lags, bytes_per_block: int) -> None:
        self.links = links
        self.lags = lags
        self.bytes_per_block = bytes_per_block
        self.listening: dict[str, SimulatedWays] = {}

    def seconds(self, one: WorkerId, other: WorkerId) -> float:
        """What a message between two workers takes."""
        return self.links.latency(one, other) + self.lags.between(one, other)


class _End:
    """One side of a connection; what is sent on it arrives at the `other` in order."""

    other: "_End"

    def __init__(self, worker_id: WorkerId, engine_id: EngineId, near: Neighbourhood) -> None:
        """The worker is the one that this side talks to."""
        self.hello = Hello(engine_id=engine_id, pools=())
        self.hear: Callable[[Message], None]
        self.lose: Callable[[], None]
        self._worker_id = worker_id
        self._near = near
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._is_open = True

    def send(self, message: Message) -> None:
        """See `Connection`."""
        if self._is_open:
            seconds = self._near.seconds(self.other._worker_id, self._worker_id)
            self._due = max(self._due, self._loop.time() + seconds)
            self._loop.call_at(self._due, self.other.arrive, message)

    def arrive(self, message: Message) -> None:
        """What the other side sent is here; nothing happens if they have hung up."""
        if self._is_open:
            self.hear(message)

    def close(self) -> None:
        """See `Connection`."""
        for end in (self, self.other):
            if end._is_open:
                end._is_open = False
                self._loop.call_soon(end.lose)


class _RemoteBlocks:
    """Another worker's pool."""

    def __init__(self, near: Neighbourhood, *, source: "SimulatedWays", target: WorkerId) -> None:
        self._near = near
        self._source = source
        self._target = target

    async def pull(self, order: PullOrder) -> Copied:
        """See `ReadablePools`."""
        source, near = self._source, self._near
        if not source.is_open:
            raise TransferError(f"{source.worker_id} is gone, and its memory with it")
        num_bytes = len(order.source_blocks) * near.bytes_per_block
        await near.links.transfer(
            source.worker_id,
            self._target,
            num_bytes,
            ready_at=source.writes.written_at(order.source_blocks),
        )
        return Copied(num_bytes, 1)

    def close(self) -> None:
        """Nothing is mapped."""


class SimulatedWays:
    """See `Ways`; of one worker, from its start to its end."""

    def __init__(
        self,
        worker_id: WorkerId,
        engine_id: EngineId,
        *,
        near: Neighbourhood,
        writes: Writes,
        spawn: Spawn,
    ) -> None:
        self.worker_id = worker_id
        self.writes = writes
        self.spawn = spawn
        self.is_open = False
        self._engine_id = engine_id
        self._near = near
        self._ears: Ears | None = None
        self._links: dict[str, Link] = {}
        self._accepted: dict[_End, None] = {}

    def __len__(self) -> int:
        return len(self._links)

    async def listen(self, host: str, port: int, ears: Ears) -> int:  # noqa: ARG002
        """See `Ways`."""
        self._ears = ears
        self.is_open = True
        self._near.listening[self.worker_id] = self
        return PORT

    async def connect(self, host: str, port: int, engine_id: EngineId) -> Link:  # noqa: ARG002
        """See `Ways`; what is new takes a message there and one back."""
        link = self._links.get(host)
        if link is None:
            seconds = self._near.seconds(self.worker_id, WorkerId(host))
            if seconds:
                await asyncio.sleep(2 * seconds)
            link = self._links.get(host) or self._open(host)
        if link.engine_id != engine_id:
            raise TransferError(f"{host} is engine {link.engine_id}, not {engine_id}")
        return link

    async def close(self) -> None:
        """See `Ways`."""
        self.is_open = False
        if self._near.listening.get(self.worker_id) is self:
            del self._near.listening[self.worker_id]
        for end in (*self._accepted, *(link.connection for link in self._links.values())):
            end.close()

    def _open(self, host: str) -> Link:
        source = self._near.listening.get(host)
        if source is None:
            raise TransferError(f"the worker at {host} cannot be reached")
        ours = _End(source.worker_id, source._engine_id, self._near)
        theirs = _End(self.worker_id, self._engine_id, self._near)
        ours.other, theirs.other = theirs, ours
        pools = _RemoteBlocks(self._near, source=source, target=self.worker_id)
        link = self._links[host] = Link(ours, pools)
        ours.hear = lambda message: self._told.from_source(link, cast("FromSource", message))
        ours.lose = lambda: self._lost(host, link)
        source.accept(theirs)
        return link

    def accept(self, end: _End) -> None:
        """Another worker has connected."""
        self._accepted[end] = None
        end.hear = lambda message: self._told.from_target(end, cast("FromTarget", message))
        end.lose = lambda: self._left(end)

    @property
    def _told(self) -> Ears:
        assert self._ears is not None, "hears before it listens"
        return self._ears

    def _lost(self, host: str, link: Link) -> None:
        link.is_lost = True
        if self._links.get(host) is link:
            del self._links[host]
        self._told.source_lost(link)

    def _left(self, end: _End) -> None:
        del self._accepted[end]
        self._told.target_lost(end)
