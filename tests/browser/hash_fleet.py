"""Workers on a hash model and `expediter serve` before them, for a browser to look at."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

WORKER = Path(__file__).parents[1] / "worker" / "serve_hash_model.py"
START_SECONDS = 60
PORTS = (
    r"the gateway listens on 127\.0\.0\.1:(\d+)",
    r"the admin port is http://127\.0\.0\.1:(\d+)",
)


@dataclass(frozen=True)
class HashFleet:
    """Where it is: the API, and the pages."""

    api: str
    pages: str

    def chat(self, *messages: str, max_tokens: int = 8) -> httpx.Response:
        """One answer; the messages are the person's and the model's, in turn."""
        roles = ("user", "assistant")
        body = {
            "model": "hash",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "messages": [
                {"role": roles[place % 2], "content": text} for place, text in enumerate(messages)
            ],
        }
        return httpx.post(f"{self.api}/v1/chat/completions", json=body, timeout=START_SECONDS)


@contextmanager
def hash_fleet(*options: str, num_workers: int = 2) -> Iterator[HashFleet]:
    """Running, once every worker is up; `options` are those of `expediter serve`."""
    with ExitStack() as stack:
        urls = [stack.enter_context(_worker()) for _ in range(num_workers)]
        command = [sys.executable, "-m", "expediter", "serve", "--port", "0"]
        command += [f"--worker={url}" for url in urls]
        command += ["--set=gateway.health-interval-seconds=0.1", *options]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("wb"))
        stack.enter_context(_ended(subprocess.Popen(command, stderr=log)))
        api, pages = _ports(folder / "log", num_up=num_workers)
        yield HashFleet(f"http://127.0.0.1:{api}", f"http://127.0.0.1:{pages}")


@contextmanager
def _worker() -> Iterator[str]:
    command = [
        sys.executable,
        str(WORKER),
        "1",
        "tcp://127.0.0.1:*",
        "--replay",
        "tcp://127.0.0.1:*",
    ]
    command += ["--batched-tokens", "512"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with _ended(process):
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.terminate()


def _ports(log: Path, *, num_up: int) -> list[str]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        said = log.read_text("utf-8")
        found = [re.search(pattern, said) for pattern in PORTS]
        if all(found) and said.count(" is up") >= num_up:
            return [match[1] for match in found if match is not None]
        time.sleep(0.05)
    raise AssertionError(log.read_text("utf-8"))
