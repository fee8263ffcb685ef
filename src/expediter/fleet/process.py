"""One process of the fleet: started, watched, stopped.

Its standard input is a pipe whose other end only we hold. The kernel closes that end when we
die, however we die, and the child reads the end of the file (`exit_with_parent`): that is why
no worker outlives its supervisor. It leads its own process group, so that Ctrl-C reaches the
supervisor alone, which then stops the others in order.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOG_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to run. The process is ready once `ready_url` answers 200."""

    name: str
    command: Sequence[str]
    ready_url: str
    log: Path


class FleetProcess:
    """A child that can be started again after it has ended; `pid` is the current one."""

    def __init__(self, spec: ProcessSpec, *, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id, once started."""
        return self._process.pid if self._process is not None else None

    @property
    def returncode(self) -> int | None:
        """The exit status of the last run, negative for a signal; None while it runs."""
        return self._process.returncode if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Started, and not seen to have ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Run the command; its output is appended to the log under a line that dates it."""
        assert not self.is_running, self.spec.name
        with self.spec.log.open("ab") as log:
            log.write(f"== {self.spec.name} started {time.strftime('%F %T')}\n".encode())
            log.flush()
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(self._environment),
                process_group=0,
            )

    async def wait(self) -> int:
        """The exit status, once it has ended."""
        assert self._process is not None, self.spec.name
        return await self._process.wait()

    async def stop(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL if it still runs `seconds` later; returns when it has ended."""
        if self._process is None or not self.is_running:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            self.kill()
            await self.wait()

    def kill(self) -> None:
        """SIGKILL, to the process and to all it started, if it still runs."""
        if self._process is not None and self.is_running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def log_tail(self, num_lines: int) -> list[str]:
        """The last lines it wrote."""
        with self.spec.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace").splitlines()[-num_lines:]


def exit_with_parent(seconds: float) -> None:
    """In the child: SIGTERM ourselves when standard input ends, and leave `seconds` later."""
    threading.Thread(target=_watch_parent, args=(seconds,), daemon=True, name="parent").start()


def _watch_parent(seconds: float) -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(1)
