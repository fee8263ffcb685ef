"""A coroutine that goes on where its news arrives.

A task's next step is a later turn of the event loop. A request waits for one thing, its worker's
answer, and would pay for several turns. An errand runs as soon as it is sent; when a `Pause` that
it waits for ends, it goes on within that very call. Futures it awaits as a task does. What it has
not is a task around it, which time-outs and task groups need: they go through `in_task`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Done = Callable[[BaseException | None], None]
_in_errand = False  # whether an errand runs now; asyncio's look for a task is a system call


class Pause:
    """Awaited by one coroutine at a time, until `end`; `abort` if that one is cancelled."""

    __slots__ = ("resume",)

    def __init__(self) -> None:
        self.resume: Callable[[], None] | None = None  # set by whoever runs the coroutine

    def __await__(self) -> Generator[Any, None, None]:
        if _in_errand:
            return iter((self,))  # type: ignore[return-value]  # all that an errand needs of it
        return self._in_task()

    def _in_task(self) -> Generator[Any, None, None]:
        future = asyncio.get_running_loop().create_future()
        self.resume = lambda: None if future.done() else future.set_result(None)
        try:
            yield from future
        except asyncio.CancelledError:
            self.resume = None
            self.abort()
            raise

    def end(self) -> None:
        """Whoever waits goes on, an errand at once; not to be called from within a task."""
        resume = self.resume
        if resume is not None:
            self.resume = None
            resume()

    def abort(self) -> None:
        """Nobody waits any more."""


class Errand:
    """Runs coroutines, one at a time; `done` is told of each one's end, with what it raised."""

    __slots__ = ("_coroutine", "_done", "_is_cancelled", "_waits_for")

    def __init__(self, done: Done) -> None:
        self._done = done
        self._waits_for: Pause | asyncio.Future[Any] | None = None

    def take(self, coroutine: Coroutine[Any, None, None]) -> None:
        """Run this next, as soon as it is told to `go`."""
        self._coroutine = coroutine
        self._is_cancelled = False  # from its next step on

    def go(self) -> None:
        """Run up to the next wait."""
        global _in_errand
        outer, _in_errand = _in_errand, True
        try:
            try:
                if self._is_cancelled:
                    self._is_cancelled = False
                    waits_for = self._coroutine.throw(asyncio.CancelledError())
                else:
                    waits_for = self._coroutine.send(None)
            finally:
                _in_errand = outer
        except StopIteration:
            self._waits_for = None  # nothing of an answer is kept until the next one
            self._done(None)
        except (Exception, asyncio.CancelledError) as error:
            self._waits_for = None
            self._done(error)
        else:
            self._waits_for = waits_for
            if isinstance(waits_for, Pause):
                waits_for.resume = self.go
            else:
                self._await(waits_for)

    def cancel(self) -> None:
        """As of a task, but one that waits in a `Pause` is over when this returns."""
        waits_for = self._waits_for
        if isinstance(waits_for, Pause):
            waits_for.resume = None
            waits_for.abort()
            self._is_cancelled = True
            self.go()
        elif waits_for is None or not waits_for.cancel():
            self._is_cancelled = True  # it is about to go on

    def _await(self, future: asyncio.Future[Any] | None) -> None:
        """Go on when the future is done, or after a turn of the loop if there is none."""
        if future is None:
            asyncio.get_running_loop().call_soon(self.go)
        else:
            future._asyncio_future_blocking = False
            future.add_done_callback(lambda _: self.go())


async def in_task(
    work: Coroutine[Any, Any, T], *, unwanted: Callable[[T], None] = lambda _: None
) -> T:
    """What the work returns; it runs in the task around it, or in one of its own if there is none.

    For what needs a task: `asyncio.timeout`, `TaskGroup`. If whoever waits is cancelled when the
    work is just done, its result is `unwanted`.
    """
    if not _in_errand:
        return await work
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await task
    except asyncio.CancelledError:
        if task.done() and not task.cancelled() and task.exception() is None:
            unwanted(task.result())
        raise
