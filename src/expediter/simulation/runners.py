"""Who runs the cells of a sweep: this process, many, or a Ray cluster. All give equal results."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Protocol, TypeVar

from expediter.errors import ConfigError

Item = TypeVar("Item")
Found = TypeVar("Found")


class Runner(Protocol):
    """Applies a function to items."""

    def __call__(
        self, work: Callable[[Item], Found], items: Sequence[Item]
    ) -> Iterator[tuple[int, Found]]:
        """Each item's place and what `work` made of it, in any order; may raise what it raises."""
        ...


def in_turn(work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[tuple[int, Found]]:
    """One after another, here."""
    return enumerate(map(work, items))


def in_processes(num_processes: int) -> Runner:
    """In so many fresh processes; `work` has to be a function of a module, with what it takes."""
    return partial(_in_processes, num_processes=num_processes)


def on_ray(work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[tuple[int, Found]]:
    """On the Ray cluster that this process belongs to, or one on this machine."""
    try:
        import ray
    except ImportError:
        raise ConfigError("ray is not installed; pip install 'expediter[ray]'") from None
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        remote = ray.remote(work_anywhere)
        pending = {remote.remote(work, item): place for place, item in enumerate(items)}
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(done[0]), ray.get(done[0])
    finally:
        if started:
            ray.shutdown()


def work_anywhere(work: Callable[[Item], Found], item: Item) -> Found:
    """Ray names tasks after functions, which a `partial` has no name for."""
    return work(item)


def _in_processes(
    work: Callable[[Item], Found], items: Sequence[Item], *, num_processes: int
) -> Iterator[tuple[int, Found]]:
    with ProcessPoolExecutor(
        max_workers=max(1, min(num_processes, len(items))),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
    ) as pool:
        places = {pool.submit(work, item): place for place, item in enumerate(items)}
        try:
            for future in as_completed(places):
                yield places[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """The parent hears Ctrl-C and stops us; if it is gone, there is nobody to work for.

    What simulated fleets go through is no news.
    """
    logging.getLogger().setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
