"""A gateway with its admin port: both in this process, or `expediter serve` as others start it."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from fake_worker import OK, FakeWorker, Received, until

from expediter.assemble.policies import build_policy
from expediter.config import AdminConfig, GatewayConfig, HealthConfig, RoutingConfig
from expediter.gateway.admin import AdminServer, create_admin_app
from expediter.gateway.gateway import Gateway
from expediter.routing.policy import RoutingPolicy

START_SECONDS = 60
QUIET = HealthConfig(load_interval_seconds=0)  # workers are asked nothing but whether they live


def policy_of(routing: RoutingConfig) -> RoutingPolicy:
    return build_policy(routing, clock=time.monotonic, rng=random.Random(1))


async def reports_load(received: Received, writer: asyncio.StreamWriter) -> None:
    """A worker's script that tells its load, as vLLM does: three run, two wait."""
    body = LOAD_PAGE if received.target == "/metrics" else b"{}"
    writer.write(OK + b"content-length: %d\r\n\r\n%b" % (len(body), body))


LOAD_PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting 2
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc 0.25
"""


@asynccontextmanager
async def operated(
    *workers: FakeWorker, token: str | None = None, **settings: object
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A running gateway that has seen every worker up, and a client of its admin port."""
    told = {"shutdown_seconds": 1.0, "health_interval_seconds": 0.05, "health": QUIET, **settings}
    endpoints = tuple(worker.endpoint for worker in workers)
    config = GatewayConfig(port=0, workers=endpoints, **told)  # type: ignore[arg-type]
    gateway = Gateway(config, policy=policy_of(config.routing), build_policy=policy_of)
    await gateway.start()
    app = create_admin_app(gateway, token=token)
    admin = AdminServer(app, AdminConfig(port=0, token=token), gateway_port=gateway.port)
    await admin.start()
    try:
        await until(lambda: len(gateway.membership.ready()) == len(workers))
        url = f"http://127.0.0.1:{admin.port}"
        async with httpx.AsyncClient(base_url=url, verify=False) as client:
            yield gateway, client
    finally:
        await admin.stop()
        await gateway.stop()


@dataclass
class Served:
    """`expediter serve`, its settings in a file and what it logs in another."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    admin: httpx.AsyncClient

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8")

    def write(self, settings: Mapping[str, object]) -> None:
        (self.folder / "gateway.toml").write_text(tomli_w.dumps(settings), "utf-8")

    async def reload(self, settings: Mapping[str, object] | None = None) -> None:
        """Returns when one more reload has been logged, or refused."""
        if settings is not None:
            self.write(settings)
        before = len(RELOADED.findall(self.log))
        self.process.send_signal(signal.SIGHUP)
        await until(lambda: len(RELOADED.findall(self.log)) > before)

    async def ask(self, *, key: str | None = None, **body: Any) -> httpx.Response:
        """A request on a connection of its own, so that any process may get it."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        async with httpx.AsyncClient(headers=headers, timeout=60, verify=False) as client:
            return await client.post(url, json=body)

    async def stats(self) -> dict[str, Any]:
        answer = await self.admin.get("/stats")
        assert answer.status_code == 200, answer.text
        stats: dict[str, Any] = answer.json()
        return stats


RELOADED = re.compile("settings were read again|settings stay as they were")


@asynccontextmanager
async def served(
    folder: Path, settings: Mapping[str, object], *options: str, num_workers: int
) -> AsyncIterator[Served]:
    """Started from a file with these settings, once so many workers are up."""
    (folder / "gateway.toml").write_text(tomli_w.dumps(settings), "utf-8")
    command = [sys.executable, "-m", "expediter", "serve", "-c", str(folder / "gateway.toml")]
    with (folder / "log").open("wb") as log, (folder / "out").open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220
            [*command, "--port", "0", *options], stdout=out, stderr=log
        )
    try:
        found = [await _logged(folder, process, rf"{what}:(\d+)") for what in PORTS]
        url = f"http://127.0.0.1:{found[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as admin:
            gateway = Served(process, folder, found[0], admin)
            await eventually(lambda: _is_ready(admin, num_workers))
            yield gateway
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, START_SECONDS)
        finally:
            process.kill()
            process.wait()


PORTS = ("the gateway listens on 127.0.0.1", "the admin port is http://127.0.0.1")


async def _logged(folder: Path, process: subprocess.Popen[bytes], pattern: str) -> int:
    async with asyncio.timeout(START_SECONDS):
        while True:
            log = (folder / "log").read_text("utf-8")
            if found := re.search(pattern, log):
                return int(found[1])
            assert process.poll() is None, log
            await asyncio.sleep(0.02)


async def _is_ready(admin: httpx.AsyncClient, num_workers: int) -> bool:
    answer = await admin.get("/ready")
    readiness = answer.json()
    return answer.status_code == 200 and readiness["num_ready_workers"] == num_workers


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(START_SECONDS):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def children(pid: int) -> list[int]:
    """The processes that this one has started, the oldest first."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    return [int(each) for each in found]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text("utf-8")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """An access log."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
