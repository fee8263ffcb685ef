"""An event loop on which waiting costs nothing.

asyncio waits in one place: between two rounds of callbacks, until the next timer is due. Here
that wait only moves the clock, so everything written for asyncio runs in virtual time unchanged.
Calls due at one instant are made in the order in which they were asked for, which makes a run a
function of its inputs.

Two mistakes would make such a loop hang, and raise SimulationStalled instead: nothing is left to
wait for though the main task is not done, and time that no longer passes.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

import msgspec

from expediter.errors import SimulationStalled

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_CALLS_AT_ONE_INSTANT = 10_000_000
NUM_TASKS_NAMED = 8


class _Call(msgspec.Struct, eq=False, weakref=True):
    """A handle that costs no more than it must: there are a dozen for every request."""

    when_due: float
    callback: Callable[..., object] | None  # None if it was cancelled
    args: tuple[object, ...]
    context: contextvars.Context

    def cancel(self) -> None:
        """See `asyncio.Handle`; it stays in its queue until its turn."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """See `asyncio.Handle`."""
        return self.callback is None

    def when(self) -> float:
        """See `asyncio.TimerHandle`."""
        return self.when_due


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Time starts at 0 and is in seconds. No sockets, no threads."""

    _ready: deque[_Call]
    _stopping: bool

    def __init__(self, *, max_calls: int = MAX_CALLS_AT_ONE_INSTANT) -> None:
        """`max_calls` without any time passing are taken for a runaway."""
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, _Call]] = []
        self._serial = count()
        self._max_calls = max_calls

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As in asyncio; of calls at the same time, the first asked for is the first made."""
        call: Any = _Call(when, callback, args, copy_context() if context is None else context)
        heappush(self._timers, (when, next(self._serial), call))
        return call  # type: ignore[no-any-return]  # what a handle has, and is no subclass

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As in asyncio."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As in asyncio, without its checks."""
        call: Any = _Call(0.0, callback, args, copy_context() if context is None else context)
        self._ready.append(call)
        return call  # type: ignore[no-any-return]

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """The same: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        """Refused: a thread takes real time."""
        del executor, args
        raise RuntimeError(f"{func} would run in a thread, and virtual time does not wait for it")

    def _run_once(self) -> None:
        """Make the calls of one instant after the other, until the loop is to stop."""
        ready = self._ready
        num_calls = 0  # since time last passed
        while True:
            while ready and not self._stopping:
                call = ready.popleft()
                if call.callback is not None:
                    try:
                        call.context.run(call.callback, *call.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._failed(call, error)
                num_calls += 1
                if num_calls > self._max_calls:
                    raise SimulationStalled(f"time stands still at {self._now:g} s; {self._who}")
            if self._stopping:
                return
            if self._take_due():
                num_calls = 0

    def _take_due(self) -> bool:
        """The calls of the next instant are ready then; whether it is another than this one."""
        ready, timers, before = self._ready, self._timers, self._now
        while timers:
            when, _, call = timers[0]
            if call.callback is not None:
                if when > self._now:
                    if ready:
                        return self._now > before
                    self._now = when
                ready.append(call)
            heappop(timers)
        if not ready:
            raise SimulationStalled(f"at {self._now:g} s nothing is left to happen; {self._who}")
        return self._now > before

    def _failed(self, call: _Call, error: BaseException) -> None:
        """As in asyncio, for what no future takes."""
        self.call_exception_handler(
            {"message": f"Exception in callback {call!r}", "exception": error, "handle": call}
        )

    @property
    def _who(self) -> str:
        waiting = sorted(_describe(task) for task in asyncio.all_tasks(self))
        named = ", ".join(waiting[:NUM_TASKS_NAMED])
        more = ", ..." if len(waiting) > NUM_TASKS_NAMED else ""
        return f"{len(waiting)} tasks wait: {named}{more}"

    def _process_events(self, event_list: list[object]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """Nothing to wake up: the loop never sleeps."""


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a clock that jumps; all its tasks are cancelled then."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def _describe(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return f"{task.get_name()} ({getattr(coroutine, '__qualname__', coroutine)})"
