"""A hand-over and everything it runs in the background, for the length of a block."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from expediter.clock import Clock
from expediter.errors import ExpediterError
from expediter.worker.handover.links import Links
from expediter.worker.handover.live import LiveHandover
from expediter.worker.handover.pools import Pools
from expediter.worker.handover.terms import Terms, WatchLayers


@asynccontextmanager
async def open_handover(
    terms: Terms,
    *,
    pools: Pools,
    clock: Clock,
    wall_clock: Clock,
    watch_layers: WatchLayers | None = None,
) -> AsyncIterator[LiveHandover]:
    """A hand-over that listens once it is bound and started; it ends with the block."""
    running: set[asyncio.Task[object]] = set()
    failure: ExpediterError | None = None  # the block's own, which a group would wrap
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
            task = tasks.create_task(work)
            running.add(task)
            task.add_done_callback(running.discard)
            return task

        handover = LiveHandover(
            terms,
            pools=pools,
            links=Links(terms.engine_id, pools=pools, spawn=spawn),
            clock=clock,
            wall_clock=wall_clock,
            watch_layers=watch_layers,
        )
        try:
            yield handover
        except ExpediterError as error:
            failure = error
        finally:
            await handover.close()
            while running:  # one that ends may begin another
                for task in list(running):
                    task.cancel()
                await asyncio.wait(running)
    if failure is not None:
        raise failure
