"""Computes in other processes, so that the server goes on answering.

Two lanes of one process each: answers to a moving slider never wait behind simulations. What
nobody waits for any more is not begun; what has begun ends, within a second or two.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Literal

from expediter.errors import ExpediterError

Lane = Literal["quick", "slow"]
NICENESS: Mapping[Lane, int] = {"quick": 0, "slow": 10}
NUM_KEPT = 200
"""Answers that are kept: a page that goes back asks the same again."""


class LabFailed(ExpediterError):
    """A question got no answer, by no fault of its own."""

    status = 503


class Pool:
    """Processes start with the first question, and end with this process."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, ProcessPoolExecutor] = {}
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    async def ask(self, lane: Lane, compute: Callable[..., Any], *arguments: Any) -> Any:
        """What `compute` returns for the arguments, which must be hashable and picklable.

        Cancelling it takes the question off the lane, unless it has begun. Raises LabFailed if
        the lane's process dies; the next question gets a new one.
        """
        key = compute, arguments
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        try:
            found = await asyncio.wrap_future(self._lane(lane).submit(compute, *arguments))
        except BrokenProcessPool:
            self._lanes.pop(lane, None)
            raise LabFailed("the process that computed this has died; try again") from None
        self._kept[key] = found
        while len(self._kept) > NUM_KEPT:
            self._kept.popitem(last=False)
        return found

    def start(self) -> None:
        """Start both processes, which takes them a second."""
        for lane in ("quick", "slow"):
            self._lane(lane).submit(os.getpid)

    def close(self) -> None:
        """End the processes; what is being computed is waited for."""
        for lane in self._lanes.values():
            lane.shutdown(cancel_futures=True)
        self._lanes.clear()

    def _lane(self, name: Lane) -> ProcessPoolExecutor:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = ProcessPoolExecutor(
                1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(NICENESS[name],),
            )
        return lane


def _begin(niceness: int) -> None:
    """In the new process: leave Ctrl-C to the server, and leave when the server is gone."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=follow, name="follow the server", daemon=True).start()
