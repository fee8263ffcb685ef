"""A gateway and workers as processes of their own, for what only processes can do: die, hang, leak.

The workers are real ones on a hash model (tests/worker/serve_hash_model.py): a token is a byte, a
block four tokens.
"""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from fake_worker import Answer, ask, client_of, get, post

WORKER = Path(__file__).parents[1] / "worker" / "serve_hash_model.py"
FAST_WORKER = Path(__file__).parent / "fast_worker.py"
START_SECONDS = 60
SAMPLE = re.compile(r"^([a-z_:]+)(?:\{(.*)\})? (\S+)$")


@dataclass
class ProcessOnPort:
    """A process that serves HTTP on a port of 127.0.0.1."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """What the gateway calls a worker that has no other name."""
        return f"127.0.0.1:{self.port}"

    @property
    def num_descriptors(self) -> int:
        return psutil.Process(self.process.pid).num_fds()

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        return psutil.Process(self.process.pid).memory_info().rss

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait(START_SECONDS)

    async def fetch(self, path: str) -> Any:
        answer = await ask(self, get(path))
        assert answer.status == 200, answer
        return json.loads(answer.body)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples with that name and at least those labels."""
        page = (await ask(self, get("/metrics"))).body.decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = filter(None, map(SAMPLE.match, page.splitlines()))
        return sum(
            float(sample[3])
            for sample in found
            if sample[1] == name and all(label in (sample[2] or "") for label in wanted)
        )


@asynccontextmanager
async def worker_process(*options: str, port: int = 0) -> AsyncIterator[ProcessOnPort]:
    """Options are those of serve_hash_model.py; KV events can be replayed unless they say more."""
    command = [sys.executable, str(WORKER), "1", "tcp://127.0.0.1:*", "--port", str(port)]
    if "--replay" not in options:
        command += ["--replay", "tcp://127.0.0.1:*"]
    async with _started([*command, *options]) as worker:
        yield worker


@asynccontextmanager
async def fast_worker(*, port: int = 0) -> AsyncIterator[ProcessOnPort]:
    """One that computes nothing: see fast_worker.py."""
    async with _started([sys.executable, str(FAST_WORKER), str(port)]) as worker:
        yield worker


@asynccontextmanager
async def _started(command: list[str]) -> AsyncIterator[ProcessOnPort]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        yield ProcessOnPort(process, int(line))
    finally:
        await _end(process)
        process.stdout.close()


@asynccontextmanager
async def gateway_process(
    folder: Path,
    *workers: ProcessOnPort,
    options: tuple[str, ...] = (),
    num_ready: int | None = None,
    **settings: object,
) -> AsyncIterator[ProcessOnPort]:
    """`expediter serve` before the workers, once it has seen them all up.

    `num_ready` says how many, for workers that `options` name.
    """
    port = free_port()
    told = {
        "admin.enabled": "false",
        "health-interval-seconds": 0.1,
        "shutdown-seconds": 1,
        **{key.replace("_", "-").replace("--", "."): value for key, value in settings.items()},
    }
    command = [sys.executable, "-m", "expediter", "serve", "--port", str(port), *options]
    command += [f"--worker={worker.url}" for worker in workers]
    command += [f"--set=gateway.{key}={value}" for key, value in told.items()]
    with (folder / f"gateway-{port}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220
    gateway = ProcessOnPort(process, port)
    try:
        number = len(workers) if num_ready is None else num_ready
        await eventually(lambda: _is_ready(gateway, number), seconds=START_SECONDS)
        yield gateway
    finally:
        await _end(process)


async def _is_ready(gateway: ProcessOnPort, num_workers: int) -> bool:
    assert gateway.process.poll() is None, "the gateway did not start"
    with suppress(ConnectionError):
        answer = await ask(gateway, get("/ready"))
        return bool(json.loads(answer.body)["num_ready_workers"] == num_workers)
    return False


async def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        await asyncio.to_thread(process.wait, 20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def eventually(
    claim: Callable[[], Awaitable[bool]], *, seconds: float = 40, pause: float = 0.03
) -> None:
    async with asyncio.timeout(seconds):
        while not await claim():  # noqa: ASYNC110
            await asyncio.sleep(pause)


def completion(prompt: object, **fields: object) -> bytes:
    """A request for a completion, eight tokens unless it says how many."""
    body = {"model": "hash", "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
    return post(json.dumps({"ignore_eos": True, **body}).encode())


async def complete(gateway: ProcessOnPort, prompt: object, **fields: object) -> Answer:
    return await ask(gateway, completion(prompt, **fields))


def tokens(letter: str, number: int = 400) -> list[int]:
    """A prompt of its own, by its first letter."""
    return [ord(letter)] * number


def cached_tokens(answer: Answer) -> int:
    """What the worker says it had."""
    details = json.loads(answer.body)["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"]) if details else 0


def matched_tokens(answer: Answer) -> int:
    """What the gateway took it to have."""
    return int(answer.headers["x-expediter-matched-tokens"])


class Stream:
    """A streamed completion, open; its events come as they are asked for."""

    def __init__(self, client: Any, worker: str) -> None:
        self._client = client
        self.worker = worker

    async def event(self) -> Any:
        """The last event of the next chunk; None at the end of a body that is complete."""
        async with asyncio.timeout(40):
            size = int((await self._client.reader.readuntil(b"\r\n"))[:-2], 16)
            data = (await self._client.reader.readexactly(size + 2))[:-2]
        if not size:
            return None
        *_, event = data.decode().strip().split("\n\n")
        event = event.removeprefix("data: ")
        return event if event == "[DONE]" else json.loads(event)

    async def last(self) -> Any:
        """The last event before the end."""
        last = None
        while (event := await self.event()) is not None:
            last = event
        return last


@asynccontextmanager
async def stream(gateway: ProcessOnPort, prompt: object, **fields: object) -> AsyncIterator[Stream]:
    async with client_of(gateway) as client:
        client.send(completion(prompt, stream=True, **fields))
        head = await client.answer(to_head=True)
        assert head.status == 200, head
        yield Stream(client, head.headers["x-expediter-worker"])
