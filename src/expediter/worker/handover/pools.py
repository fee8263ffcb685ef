"""This worker's pools, and the ways to read other workers' into them.

A worker whose model is split over processes has a pool in each. Which pool of the other worker
has the heads that one of ours needs is arithmetic on layouts (`copy_plan`); how the bytes get
here is the best transport that both sides have.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from expediter.errors import LayoutMismatch, TransferError
from expediter.transfer.copy_plan import Slice, copy_plan, shards_for
from expediter.transfer.incoming import PullOrder
from expediter.transfer.layout import KVLayout, check_compatible
from expediter.transfer.transport import KVHandle, KVPeer, KVTransport
from expediter.transfer.transports import choose


class Copied(NamedTuple):
    """What a pull moved."""

    num_bytes: int
    num_descriptors: int


class ReadablePools(Protocol):
    """Another worker's pools, which can be read."""

    async def pull(self, order: PullOrder) -> Copied:
        """Copy the blocks of an order into ours; TransferError if that cannot be done."""
        ...

    def close(self) -> None:
        """Let go of them; no pull may be under way. May be called twice."""
        ...


class OwnPools(Protocol):
    """What a hand-over has to know of a worker's own pools."""

    @property
    def layout(self) -> KVLayout:
        """Of the first pool; what all have in common is the same in each."""
        ...

    @property
    def num_ranks(self) -> int:
        """Processes that share the heads."""
        ...


class _Route(NamedTuple):
    transport: KVTransport
    peer: KVPeer
    heads: range


class RemotePools:
    """See `ReadablePools`."""

    def __init__(self, routes: Sequence[_Route]) -> None:
        self._routes = list(routes)

    async def pull(self, order: PullOrder) -> Copied:
        """See `ReadablePools`. From several pools at once."""
        plans = [_plan(route, order) for route in self._routes]
        pulls = zip(self._routes, plans, strict=True)
        # All come to their end, whatever becomes of one of them or of us: only then is nothing
        # being written any more.
        ends = await asyncio.gather(
            *(route.transport.pull(route.peer, slices) for route, slices in pulls),
            return_exceptions=True,
        )
        for end in ends:
            if end is not None:
                raise end
        slices = [piece for plan in plans for piece in plan]
        return Copied(sum(piece.total_bytes for piece in slices), len(slices))

    def close(self) -> None:
        """See `ReadablePools`."""
        routes, self._routes = self._routes, []
        for peer in {id(route.peer): route.peer for route in routes}.values():
            peer.close()


class Pools:
    """Ours: for each process that holds a part of the heads, its transports, best first."""

    def __init__(self, pools: Sequence[Sequence[KVTransport]]) -> None:
        self._pools = pools

    @property
    def layout(self) -> KVLayout:
        """See `OwnPools`."""
        return self._pools[0][0].layout

    @property
    def num_ranks(self) -> int:
        """See `OwnPools`."""
        return len(self._pools)

    def describe(self) -> tuple[tuple[KVHandle, ...], ...]:
        """How others can read them."""
        return tuple(tuple(way.describe() for way in ways) for ways in self._pools)

    async def connect(self, handles: Sequence[Sequence[KVHandle]]) -> RemotePools:
        """Connections to all that ours need; TransferError or LayoutMismatch say why not."""
        if not all(handles):
            raise LayoutMismatch("the other worker has a pool that nobody can read")
        routes: list[_Route] = []
        connected: dict[tuple[int, int], KVPeer] = {}
        try:
            for number, ways in enumerate(self._pools):
                for theirs, heads in _shards(ways, handles):
                    chosen = choose(ways, handles[theirs])
                    if chosen is None:
                        raise TransferError("the other worker's memory cannot be reached from here")
                    transport, handle = chosen
                    if (number, theirs) not in connected:
                        connected[number, theirs] = await _connect(transport, handle)
                    routes.append(_Route(transport, connected[number, theirs], heads))
        except BaseException:
            for peer in connected.values():
                peer.close()
            raise
        return RemotePools(routes)

    async def close(self) -> None:
        """Serve and read no more."""
        for ways in self._pools:
            for transport in ways:
                await transport.close()


def _shards(
    ways: Sequence[KVTransport], handles: Sequence[Sequence[KVHandle]]
) -> list[tuple[int, range]]:
    layouts = [choices[0].layout for choices in handles]
    for layout in layouts:
        check_compatible(layout, ways[0].layout)
    return shards_for(ways[0].layout, layouts)


def _plan(route: _Route, order: PullOrder) -> list[Slice]:
    """What of an order comes this way."""
    try:
        return copy_plan(
            route.peer.layout,
            route.transport.layout,
            source_blocks=order.source_blocks,
            target_blocks=order.target_blocks,
            layers=order.layers,
            heads=route.heads,
        )
    except (ValueError, OverflowError) as error:
        raise TransferError(f"the other worker's blocks make no sense: {error}") from error


async def _connect(transport: KVTransport, handle: KVHandle) -> KVPeer:
    try:
        return await transport.connect(handle)
    except (OSError, ValueError, OverflowError) as error:
        raise TransferError(f"the other worker's pool cannot be read: {error}") from error
