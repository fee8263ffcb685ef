"""Coroutines that go on within the call that brings their news (`cluster/errand.py`).

Of what a simulated step or request costs, turns of the event loop would be a third.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from expediter.cluster.errand import Errand


async def as_errand(work: Coroutine[Any, Any, None]) -> None:
    """Returns when the work has ended, or raises what it raised; cancelling it cancels the work."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def done(error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            ended.cancel()
        else:
            ended.set_exception(error)

    errand = Errand(done)
    errand.take(work)
    loop.call_soon(errand.go)
    try:
        await asyncio.wait([ended])
    except asyncio.CancelledError:
        errand.cancel()
        await asyncio.wait([ended])
        raise
    ended.result()
