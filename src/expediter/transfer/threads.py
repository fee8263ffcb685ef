"""Blocking work in a thread, for whoever must know when it has ended."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress


def nothing() -> None:
    """How to interrupt what cannot be interrupted."""


async def run_to_end(
    thread: Executor, work: Callable[[], None], *, interrupt: Callable[[], None] = nothing
) -> None:
    """Returns or raises only when `work` has ended or never began, however often it is cancelled.

    `interrupt` is called when it is cancelled after it began.
    """
    job = thread.submit(work)
    running = asyncio.wrap_future(job)
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        if not job.cancel():
            interrupt()
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            running.exception()  # seen; whoever cancelled does not care
        raise
    running.result()
