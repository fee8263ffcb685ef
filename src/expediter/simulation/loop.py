"""An event loop whose waiting moves the clock.

asyncio waits in one place: the selector. Here the selector returns at once and adds the time it
was asked to wait to `now`, so everything written for asyncio runs in virtual time unchanged, and
nothing ever waits. Callbacks due at one instant run in the order in which they were asked for,
which makes a run a function of its inputs.

Two mistakes would make such a loop hang, and raise SimulationStalled instead: nothing is left to
wait for though the main task is not done, and time that no longer passes.
"""

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from expediter.errors import SimulationStalled

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_TURNS_AT_ONE_INSTANT = 100_000
NUM_TASKS_NAMED = 8


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Time starts at 0 and is in seconds. No sockets, no threads."""

    def __init__(self, *, max_turns: int = MAX_TURNS_AT_ONE_INSTANT) -> None:
        """`max_turns` of the loop without any time passing are taken for a runaway."""
        super().__init__()
        self._selector = _VirtualSelector(self, max_turns=max_turns)
        self._serial = count()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._selector.now

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As in asyncio; of calls at the same time, the first asked for is the first made."""
        timer = _Timer(when, callback, args, self, context)
        timer.serial = next(self._serial)
        timer._scheduled = True  # type: ignore[attr-defined]
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        return timer

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        """Refused: a thread takes real time."""
        del executor, args
        raise RuntimeError(f"{func} would run in a thread, and virtual time does not wait for it")

    def _process_events(self, event_list: list[object]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """Nothing to wake up: the loop never sleeps."""


class _Timer(asyncio.TimerHandle):
    __slots__ = ("serial",)

    serial: int
    _when: float

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer)
        mine, theirs = self._when, other._when
        return mine < theirs or (mine == theirs and self.serial < other.serial)


class _VirtualSelector:
    """What a loop waits in."""

    def __init__(self, loop: VirtualTimeLoop, *, max_turns: int) -> None:
        self.now = 0.0
        self._loop = loop
        self._max_turns = max_turns
        self._num_turns = 0  # of the loop, since time last passed

    def select(self, timeout: float | None) -> list[object]:
        """Let `timeout` seconds pass."""
        if timeout is None:
            raise SimulationStalled(f"at {self.now:g} s nothing is left to happen, but {self._who}")
        before = self.now
        self.now += timeout
        if self.now != before:
            self._num_turns = 0
            return []
        self._num_turns += 1
        if self._num_turns > self._max_turns:
            self._num_turns = 0
            raise SimulationStalled(f"time stands still at {self.now:g} s; {self._who}")
        return []

    @property
    def _who(self) -> str:
        waiting = sorted(_describe(task) for task in asyncio.all_tasks(self._loop))
        named = ", ".join(waiting[:NUM_TASKS_NAMED])
        more = (
            f" and {len(waiting) - NUM_TASKS_NAMED} more" if len(waiting) > NUM_TASKS_NAMED else ""
        )
        return f"{len(waiting)} tasks wait: {named}{more}"


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a clock that jumps; all its tasks are cancelled then."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def _describe(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return f"{task.get_name()} ({getattr(coroutine, '__qualname__', coroutine)})"
