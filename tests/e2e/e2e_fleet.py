"""A real fleet for the tests: `expediter up` as a person starts it, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from expediter.fleet.plan import some_free_port

MODEL = "SmolLM2-135M-Instruct"
START_SECONDS = 180.0
STOP_SECONDS = 30.0


@dataclass(kw_only=True)
class Fleet:
    """A fleet that runs; `http` talks to its gateway."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=120.0)

    def pids(self) -> dict[str, int]:
        """The process id of the gateway and of each worker, by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                found[Path(child.cmdline()[-1]).stem] = child.pid
            except (psutil.NoSuchProcess, IndexError):
                continue
        return found

    def everything(self) -> list[psutil.Process]:
        """The supervisor and all that it started."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def chat(self, messages: list[dict[str, str]], **options: Any) -> httpx.Response:
        """One whole answer, greedy unless told otherwise."""
        body = {"model": MODEL, "messages": messages, "temperature": 0.0, **options}
        response = self.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return response

    @contextmanager
    def stream(self, prompt: str, **options: Any) -> Iterator["Stream"]:
        """A streamed completion, open: its tokens come as they are asked for."""
        body = {"model": MODEL, "prompt": prompt, "temperature": 0.0, "stream": True, **options}
        with self.http.stream("POST", "/v1/completions", json=body) as response:
            yield Stream(response)

    def stop(self, number: signal.Signals) -> int:
        """Signal the supervisor and wait until it has ended."""
        self.http.close()
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


class Stream:
    """The events of a streamed answer."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.read()
        self.worker = response.headers["x-expediter-worker"]
        self._lines = response.iter_lines()

    def events(self) -> Iterator[dict[str, Any]]:
        """Each `data:` line as an object, until `[DONE]` or the end."""
        for line in self._lines:
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


@contextmanager
def running_fleet(folder: Path, *settings: str, num_workers: int = 3) -> Iterator[Fleet]:
    """`expediter up` in fp32, where greedy answers do not depend on what else runs."""
    port = some_free_port("127.0.0.1")
    command = [sys.executable, "-m", "expediter", "up", "--workers", str(num_workers)]
    told = ["worker.engine.dtype=float32", *settings]
    told += ["worker.shutdown-seconds=1", "gateway.shutdown-seconds=1"]
    command += ["--port", str(port), *(f"--set={setting}" for setting in told)]
    log = folder / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    fleet = Fleet(process=process, url=f"http://127.0.0.1:{port}", log=log)
    try:
        _wait_until_ready(fleet)
        yield fleet
    finally:
        if process.poll() is None:
            fleet.stop(signal.SIGTERM)


def _wait_until_ready(fleet: Fleet) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "Ready:" not in fleet.log.read_text("utf-8"):
        assert fleet.process.poll() is None, fleet.log.read_text("utf-8")
        assert time.monotonic() < deadline, fleet.log.read_text("utf-8")
        time.sleep(0.1)


def is_gone(process: psutil.Process) -> bool:
    """Ended, or ended and not yet waited for."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def eventually_gone(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Those that still run when all were given `seconds` to end."""
    deadline = time.monotonic() + seconds
    while not all(map(is_gone, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [process for process in processes if not is_gone(process)]


def kill(pid: int) -> None:
    """SIGKILL: no goodbye."""
    os.kill(pid, signal.SIGKILL)
