"""Keeps processes running: all started together, each started again when it dies.

A process that dies before it was ever ready would die again: starting the fleet fails and
shows the end of its log. One that was ready is started again after a pause that doubles with
each death in a row, so that a crash loop costs little and a single crash almost nothing.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence

from expediter.clock import Clock
from expediter.config import FleetConfig
from expediter.errors import ConfigError, ExpediterError
from expediter.fleet.process import FleetProcess

logger = logging.getLogger(__name__)

PROBE_SECONDS = 0.1  # between two looks at a process that is starting
TAIL_LINES = 20
CONFIG_EXIT_STATUS = 2  # the command line's status for what the operator has to fix

Probe = Callable[[str], Awaitable[bool]]
Report = Callable[[str], None]


class ProcessFailed(ExpediterError):
    """A process of the fleet did not become ready."""


class Supervisor:
    """`start`, then `run` until cancelled, then `stop`."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        processes: Sequence[FleetProcess],
        probe: Probe,
        clock: Clock,
        report: Report,
    ) -> None:
        self._config = config
        self._processes = processes
        self._probe = probe
        self._clock = clock
        self._report = report

    async def start(self) -> None:
        """Start all and wait until each answers; raises ProcessFailed or ConfigError."""
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(self._start(process))

    async def run(self) -> None:
        """Start again whatever dies; never returns."""
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(self._keep_running(process))

    async def stop(self) -> None:
        """Stop all at once; when this returns none is left."""
        seconds = self._config.stop_seconds
        try:
            await asyncio.gather(*(process.stop(seconds) for process in self._processes))
        finally:
            self.kill()

    def kill(self) -> None:
        """End all without asking them."""
        for process in self._processes:
            process.kill()

    async def _start(self, process: FleetProcess) -> None:
        started = self._clock()
        await process.start()
        await self._until_ready(process)
        self._report(f"{process.spec.name} is ready ({self._clock() - started:.1f} s)")

    async def _until_ready(self, process: FleetProcess) -> None:
        try:
            async with asyncio.timeout(self._config.start_seconds):
                while not await self._probe(process.spec.ready_url):
                    if not process.is_running:
                        raise _failure(process)
                    await asyncio.sleep(PROBE_SECONDS)
        except TimeoutError:
            raise _failure(process, f"not ready after {self._config.start_seconds:g} s") from None

    async def _keep_running(self, process: FleetProcess) -> None:
        pause = self._config.restart_seconds
        while True:
            started = self._clock()
            await process.wait()
            if self._clock() - started >= self._config.max_restart_seconds:
                pause = self._config.restart_seconds
            what = f"{process.spec.name} {_ending(process)}; starting it again in {pause:g} s"
            self._report(f"{what} (log: {process.spec.log})")
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._config.max_restart_seconds)
            await self._start_again(process)

    async def _start_again(self, process: FleetProcess) -> None:
        try:
            await self._start(process)
        except ExpediterError as error:
            logger.warning("%s", error)
            await process.stop(self._config.stop_seconds)


def _ending(process: FleetProcess) -> str:
    status = process.returncode
    if status is None:
        return "runs"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _failure(process: FleetProcess, what: str | None = None) -> ExpediterError:
    """Why a process did not become ready, with the end of its log."""
    lines = process.log_tail(TAIL_LINES)
    name = process.spec.name
    if process.returncode == CONFIG_EXIT_STATUS and lines:
        return ConfigError(f"{name}: {lines[-1].removeprefix('error: ')}")
    log = "\n".join(f"  {name}| {line}" for line in lines)
    return ProcessFailed(f"{name}: {what or _ending(process)}; its log ends with\n{log}")
