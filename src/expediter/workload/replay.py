"""Sends a workload in time: each turn when it is due, without waiting for the others' answers.

The time is the running event loop's, so the same code replays against a live endpoint and on a
clock that jumps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from expediter.workload.turn import Turn

Send = Callable[[Turn], Awaitable[None]]
"""Sends one turn and returns when its answer has ended, however it did."""

Ended = Callable[[BaseException | None], None]
Start = Callable[[Turn, Ended], None]
"""Begins to send a turn; `Ended` is to be told when its answer has, with what went wrong."""


async def replay(turns: Iterable[Turn], send: Send) -> None:
    """Returns when all answers have ended; an exception from `send` ends the replay.

    A turn whose time has passed, because the machine is too slow, is sent at once.
    """
    async with asyncio.TaskGroup() as tasks:

        def start(turn: Turn, ended: Ended) -> None:
            task = tasks.create_task(_send(turn, send))
            task.add_done_callback(lambda _: ended(None))  # the group takes what it raised

        await Replay(turns, start).run()


async def _send(turn: Turn, send: Send) -> None:
    await send(turn)


class Replay:
    """Starts turns by timers, for whoever sends them without a task each."""

    def __init__(self, turns: Iterable[Turn], start: Start) -> None:
        self._turns = iter(turns)
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._num_open = 1  # turns that have not ended, and the rest of them as one
        self._last: _Sending | None = None

    async def run(self) -> None:
        """Returns when all answers have ended; raises what the first that failed ended with.

        Nothing is started any more then; what is under way is the caller's.
        """
        self._started = self._loop.time()
        self._go_on()
        try:
            await self._over
        finally:
            self._last = None  # it knows of this, and such circles wait for collection

    def _go_on(self, due: Turn | None = None) -> None:
        """Start this turn, and those after it whose time has come."""
        if self._over.done():
            return
        try:
            if due is not None:
                self._last = self._begin(due)
            for turn in self._turns:
                if turn.think_time is not None:
                    self._last = self._follow(turn, turn.think_time)
                    continue
                delay = self._started + turn.arrival_time - self._loop.time()
                if delay > 0:
                    # After whatever else happens at that instant.
                    self._loop.call_later(delay, self._loop.call_soon, self._go_on, turn)
                    return
                self._last = self._begin(turn)
        except Exception as error:
            self._end(error)
        else:
            self._end(None)

    def _begin(self, turn: Turn) -> "_Sending":
        sending = _Sending(self._end)
        self._num_open += 1
        self._start(turn, sending.ended)
        return sending

    def _follow(self, turn: Turn, think_time: float) -> "_Sending":
        """Start it so long after the end of the turn before it."""
        assert self._last is not None, "a turn that follows none"
        sending = _Sending(self._end)
        self._num_open += 1
        self._last.then(lambda: self._loop.call_later(think_time, self._send, turn, sending))
        return sending

    def _send(self, turn: Turn, sending: "_Sending") -> None:
        if not self._over.done():
            try:
                self._start(turn, sending.ended)
            except Exception as error:
                self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """A turn has ended, or there are no more."""
        self._num_open -= 1
        if self._over.done():
            return
        if error is not None:
            self._over.set_exception(error)
        elif not self._num_open:
            self._over.set_result(None)


class _Sending:
    """A turn under way, or to come."""

    __slots__ = ("_end", "_has_ended", "_next")

    def __init__(self, end: Ended) -> None:
        self._end = end
        self._has_ended = False
        self._next: list[Callable[[], object]] = []

    def then(self, call: Callable[[], object]) -> None:
        """Do this when it has ended."""
        if self._has_ended:
            call()
        else:
            self._next.append(call)

    def ended(self, error: BaseException | None) -> None:
        """See `Ended`."""
        self._has_ended = True
        for call in self._next:
            call()
        self._end(error)
