"""Sends a workload in time: each turn when it is due, without waiting for the others' answers.

The time is the running event loop's, so the same code replays against a live endpoint and on a
clock that jumps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from expediter.workload.turn import Turn

Send = Callable[[Turn], Awaitable[None]]
"""Sends one turn and returns when its answer has ended, however it did."""


async def replay(turns: Iterable[Turn], send: Send) -> None:
    """Returns when all answers have ended; an exception from `send` ends the replay.

    A turn whose time has passed, because the machine is too slow, is sent at once.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.TaskGroup() as tasks:
        task: asyncio.Task[None] | None = None
        for turn in turns:
            if turn.think_time is not None:
                assert task is not None, "a turn that follows none"
                task = tasks.create_task(_follow(task, turn, send))
                continue
            delay = started + turn.arrival_time - loop.time()
            if delay > 0:
                await asyncio.sleep(delay)
            task = tasks.create_task(_send(turn, send))


async def _send(turn: Turn, send: Send) -> None:
    await send(turn)


async def _follow(previous: asyncio.Task[None], turn: Turn, send: Send) -> None:
    await asyncio.wait([previous])
    await asyncio.sleep(turn.think_time or 0.0)
    await send(turn)
