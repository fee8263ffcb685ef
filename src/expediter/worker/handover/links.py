"""Connections between this worker and others: one for each pair, either way.

Who reads KV connects. What comes over a connection goes to its receiver at once; that it is gone,
too. The other worker's pools outlive their connection until nothing is copied from them any more.

`Ways` is what a hand-over needs of them. `Links` are over TCP; a simulator has others.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol
from weakref import WeakValueDictionary

from expediter.errors import TransferError
from expediter.transfer.messages import (
    Attach,
    Done,
    EngineId,
    FromSource,
    FromTarget,
    Gone,
    Hello,
    Message,
    Offer,
    Progress,
    Queued,
    Release,
)
from expediter.transfer.peer import PeerConnection, connect_peer, serve_peers
from expediter.worker.handover.pools import Pools, ReadablePools

logger = logging.getLogger(__name__)

Spawn = Callable[..., "asyncio.Task[object]"]


class Connection(Protocol):
    """Another worker that can be talked to."""

    def __hash__(self) -> int:
        """Each is itself only."""
        ...

    @property
    def hello(self) -> Hello:
        """Who it said it is."""
        ...

    def send(self, message: Message) -> None:
        """Never waits; nothing happens if it is gone."""
        ...

    def close(self) -> None:
        """Hang up. May be called twice."""
        ...


class Ears(Protocol):
    """Who is told what comes over connections."""

    def from_target(self, peer: Connection, message: FromTarget) -> None:
        """Of a worker that reads ours."""
        ...

    def target_lost(self, peer: Connection) -> None:
        """It cannot be talked to any more."""
        ...

    def from_source(self, link: "Link", message: FromSource) -> None:
        """Of a worker that we read."""
        ...

    def source_lost(self, link: "Link") -> None:
        """It cannot be talked to any more."""
        ...


class Link:
    """A worker that we read from; `num_users` transfers may still copy."""

    def __init__(self, connection: Connection, pools: ReadablePools) -> None:
        self.connection = connection
        self.pools = pools
        self.num_users = 0
        self.is_lost = False

    @property
    def engine_id(self) -> EngineId:
        """Who it said it is."""
        return self.connection.hello.engine_id

    def close_if_unused(self) -> None:
        """Let go of the pools of a worker that is gone, unless something is copied."""
        if self.is_lost and not self.num_users:
            self.pools.close()


class Ways(Protocol):
    """All connections of one worker; `spawn` starts a task that ends with the worker."""

    spawn: Spawn

    def __len__(self) -> int:
        """Workers that can be read now."""
        ...

    async def listen(self, host: str, port: int, ears: Ears) -> int:
        """Take connections; the port they come to."""
        ...

    async def connect(self, host: str, port: int, engine_id: EngineId) -> Link:
        """A connection to a worker, old or new; TransferError if there can be none."""
        ...

    async def close(self) -> None:
        """Hang up everywhere and listen no more."""
        ...


class Links:
    """See `Ways`."""

    def __init__(self, engine_id: EngineId, *, pools: Pools, spawn: Spawn) -> None:
        self._pools = pools
        self.spawn = spawn
        self._hello = Hello(engine_id=engine_id, pools=pools.describe())
        self._ears: Ears | None = None
        self._server: asyncio.Server | None = None
        self._accepted: set[PeerConnection] = set()
        self._links: dict[tuple[str, int], Link] = {}
        self._connecting: WeakValueDictionary[tuple[str, int], asyncio.Lock] = (
            WeakValueDictionary()  # each lasts as long as somebody is at it
        )

    def __len__(self) -> int:
        return len(self._links)

    async def listen(self, host: str, port: int, ears: Ears) -> int:
        """See `Ways`."""
        self._ears = ears
        self._server = await serve_peers(host, port, self._hello, self._accept)
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def connect(self, host: str, port: int, engine_id: EngineId) -> Link:
        """See `Ways`."""
        address = (host, port)
        async with self._connecting.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None:
                link = self._links[address] = await self._open(address)
        if link.engine_id != engine_id:
            raise TransferError(f"{host}:{port} is engine {link.engine_id}, not {engine_id}")
        return link

    async def close(self) -> None:
        """See `Ways`."""
        if self._server is not None:
            self._server.close()
        for connection in (*self._accepted, *(link.connection for link in self._links.values())):
            connection.close()
        for link in self._links.values():
            link.pools.close()
        await asyncio.sleep(0)  # transports close on the loop's next turn

    async def _open(self, address: tuple[str, int]) -> Link:
        connection = await connect_peer(address[0], address[1], self._hello)
        try:
            pools = await self._pools.connect(connection.hello.pools)
        except BaseException:
            connection.close()
            raise
        link = Link(connection, pools)
        self.spawn(self._read_source(address, link, connection))
        return link

    def _accept(self, connection: PeerConnection) -> None:
        self._accepted.add(connection)
        self.spawn(self._read_target(connection))

    async def _read_target(self, connection: PeerConnection) -> None:
        assert self._ears is not None, "listens before it is told to"
        try:
            async with aclosing(connection.messages()) as messages:
                async for message in messages:
                    if not isinstance(message, Attach | Release):
                        break
                    self._ears.from_target(connection, message)
        except TransferError as error:
            logger.warning("%s: %s", connection.hello.engine_id, error)
        finally:
            connection.close()
            self._accepted.discard(connection)
            self._ears.target_lost(connection)

    async def _read_source(
        self, address: tuple[str, int], link: Link, connection: PeerConnection
    ) -> None:
        assert self._ears is not None, "connects before it listens"
        try:
            async with aclosing(connection.messages()) as messages:
                async for message in messages:
                    if not isinstance(message, Queued | Offer | Progress | Done | Gone):
                        break
                    self._ears.from_source(link, message)
        except TransferError as error:
            logger.warning("%s: %s", link.engine_id, error)
        finally:
            connection.close()
            link.is_lost = True
            if self._links.get(address) is link:
                del self._links[address]
            self._ears.source_lost(link)
            link.close_if_unused()
