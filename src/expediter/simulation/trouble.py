"""What goes wrong in a run, and when.

A fault strikes a worker `at` seconds into the run and is over after `seconds`. All that a fault
does, it takes back; two at once add up.
"""

import asyncio
from dataclasses import dataclass
from typing import assert_never

from expediter.simulation.lag import Lags
from expediter.simulation.links import SimulatedLinks
from expediter.simulation.load_pages import WorkerPages
from expediter.simulation.worker import SimulatedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A worker dies `at` seconds into the run and is back, empty, after `seconds`."""

    worker: int
    at: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A worker's steps take `factor` times as long from `at`, for `seconds`."""

    worker: int
    at: float
    seconds: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFailure:
    """No KV gets to a worker or from it, from `at`, for `seconds`; what is on its way breaks."""

    worker: int
    at: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDelay:
    """Messages to and from a worker take `delay` seconds longer each way."""

    worker: int
    at: float
    seconds: float
    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleLoad:
    """A worker tells the load of `late` seconds ago; None: that of `at`, all the time."""

    worker: int
    at: float
    seconds: float
    late: float | None = None


Fault = Crash | Slowdown | TransferFailure | NetworkDelay | StaleLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A worker and what belongs to it; there are no `links` where nothing moves over any."""

    worker: SimulatedWorker
    pages: WorkerPages
    lags: Lags
    links: SimulatedLinks | None


async def strike(fault: Fault, struck: Struck, tasks: asyncio.TaskGroup) -> None:
    """From now, which is the run's beginning, until the fault is over."""
    worker, links = struck.worker, struck.links
    await asyncio.sleep(fault.at)
    match fault:
        case Crash():
            if links is not None:
                links.cut(worker.worker_id)
            await worker.stop()
            await asyncio.sleep(fault.seconds)
            if links is not None:
                links.mend(worker.worker_id)
            worker.start(tasks)
        case Slowdown():
            worker.executor.slow_down(fault.factor)
            await asyncio.sleep(fault.seconds)
            worker.executor.slow_down(1 / fault.factor)
        case TransferFailure():
            assert links is not None, "checked with the settings"
            links.cut(worker.worker_id)
            await asyncio.sleep(fault.seconds)
            links.mend(worker.worker_id)
        case NetworkDelay():
            struck.lags.add(worker.worker_id, fault.delay)
            await asyncio.sleep(fault.seconds)
            struck.lags.take_back(worker.worker_id, fault.delay)
        case StaleLoad():
            struck.pages.be_late(fault.late)
            await asyncio.sleep(fault.seconds)
            struck.pages.be_late(0.0)
        case _:
            assert_never(fault)
