"""`expediter worker` in processes of their own, and what a gateway does with two of them."""

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from expediter.config import child_environment, environment
from expediter.fleet.plan import THREAD_DEFAULTS, some_free_port

START_SECONDS = 300.0
STOP_SECONDS = 30.0
TOLD = (
    "worker.engine.dtype=float32",
    "worker.kv-cache.num-blocks=512",
    "worker.scheduler.max-batched-tokens=48",
    "worker.shutdown-seconds=1",
)


@dataclass(kw_only=True)
class RealWorker:
    """One that runs."""

    process: subprocess.Popen[bytes]
    http: httpx.Client
    log: Path

    @property
    def last_line(self) -> str:
        return self.log.read_text("utf-8").splitlines()[-1]

    def ranks(self) -> list[psutil.Process]:
        """The processes of its other ranks."""
        return psutil.Process(self.process.pid).children()

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
        response = self.http.post("/v1/completions", json={"return_token_ids": True, **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def tokens(self, prompt: Any, **fields: Any) -> list[int]:
        tokens: list[int] = self.complete(prompt, **fields)["choices"][0]["token_ids"]
        return tokens

    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/kv_transfer_source").json()
        return found


@contextmanager
def real_workers(
    model: Path, folder: Path, sizes: dict[str, int]
) -> Iterator[dict[str, RealWorker]]:
    """Workers by name, each split over so many processes; those left at the end are killed."""
    with ExitStack() as stack:
        found = {name: _started(name, size, model, folder) for name, size in sizes.items()}
        for worker in found.values():
            stack.callback(worker.process.wait, STOP_SECONDS)
            stack.callback(worker.process.kill)
            stack.enter_context(worker.http)
        for worker in found.values():
            _wait_until_ready(worker)
        yield found


def handed_over(
    source: RealWorker, target: RealWorker, prompt: Any, **fields: Any
) -> dict[str, Any]:
    """What the target answers when both legs are sent at once."""
    where = source.source()
    name = uuid.uuid4().hex
    prefill = {"do_remote_decode": True, "transfer_id": name}
    decode = {
        "do_remote_prefill": True,
        "transfer_id": name,
        "remote_engine_id": where["engine_id"],
        "remote_host": where["host"],
        "remote_port": where["port"],
    }
    first_leg = {**fields, "max_tokens": 1, "kv_transfer_params": prefill}
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(source.complete, prompt, **first_leg)
        answer = target.complete(prompt, **fields, kv_transfer_params=decode)
        first.result()
    return answer


def eventually_gone(processes: list[psutil.Process]) -> bool:
    """Whether all have ended, once they had time for it."""
    _, alive = psutil.wait_procs(processes, STOP_SECONDS)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def _started(name: str, size: int, model: Path, folder: Path) -> RealWorker:
    port = some_free_port("127.0.0.1")
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "expediter", "worker", "--id", name, "--port", str(port)]
    command += ["--model", str(model), "--tensor-parallel", str(size)]
    command += [f"--set={setting}" for setting in TOLD]
    with log.open("wb") as output:
        # As `up` starts them: processes that share cores must not spin on them.
        environ = child_environment(environment(), **THREAD_DEFAULTS)
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environ)
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
    return RealWorker(process=process, http=http, log=log)


def _wait_until_ready(worker: RealWorker) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert worker.process.poll() is None, worker.log.read_text("utf-8")
        assert time.monotonic() < deadline, worker.log.read_text("utf-8")
        try:
            worker.http.get("/health").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
