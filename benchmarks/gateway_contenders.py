"""The proxies that `gateway.py` compares, their workers, and the bodies they are sent.

Every contender is a process of its own in front of the same two workers. What is measured is
pinned to `PROXY_CORE`, and everything else to `LOAD_CORE`.
"""

import json
import random
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

LOAD_CORE = 0
PROXY_CORE = 1
START_SECONDS = 60.0
STOP_SECONDS = 5.0
NONCE = "N" * 16  # the load generator writes another value here for every request
TURN_BYTES = 2000
TEXT = (
    "the cache of a worker holds prefix blocks that other requests may share while its queue "
    "decides which prompt runs next and how long the answer of a model will take to stream"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """`pid` is the process whose CPU time and memory count; None for the worker itself."""

    name: str
    port: int
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What to start. A contender whose program is None is left out."""

    expediter: str
    sglang_python: str | None
    vllm_python: str | None
    tokenizer: str | None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def pinned(core: int, command: Sequence[str], *, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process on one core, stopped at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def commands(setup: Setup, urls: Sequence[str]) -> dict[str, list[str]]:
    """Each contender's command line, to which its port is still to be added."""
    serve = [setup.expediter, "serve", *(part for url in urls for part in ("--worker", url))]
    found = {
        "expediter round-robin": [*serve, "--policy", "round-robin"],
        "expediter cache-aware, text": [*serve, "--policy", "cache-aware"],
    }
    if setup.tokenizer is not None:
        exact = [*serve, "--policy", "cache-aware", "--tokenizer", setup.tokenizer]
        found["expediter cache-aware, tokens"] = exact
    rivals = {
        "sglang": (setup.sglang_python, "sglang_router.launch_router"),
        "vllm": (setup.vllm_python, "vllm_router.launch_router"),
    }
    for name, (python, module) in rivals.items():
        if python is None:
            continue
        for policy in ("round_robin", "cache_aware"):
            launch = [python, "-m", module, "--worker-urls", *urls, "--policy", policy]
            quiet = ["--host", "127.0.0.1", "--log-level", "error"]
            metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
            found[f"{name} {policy.replace('_', '-')}"] = [*launch, *quiet, *metrics]
    return found


@contextmanager
def running(setup: Setup, *, worker: Path, folder: Path) -> Iterator[list[Contender]]:
    """All contenders, ready, the direct way to a worker first."""
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        for port in ports:
            command = [str(worker), str(port), "64", "0", "0"]
            stack.enter_context(pinned(LOAD_CORE, command, log=folder / f"worker-{port}.log"))
        contenders = [Contender(name="direct", port=ports[0], pid=None)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for name, command in commands(setup, urls).items():
            port = free_port()
            log = folder / f"{name}.log"
            command = [*command, "--port", str(port)]
            process = stack.enter_context(pinned(PROXY_CORE, command, log=log))
            contenders.append(Contender(name=name, port=port, pid=process.pid))
        for contender in contenders:
            wait_until_serving(contender, log=folder / f"{contender.name}.log")
        yield contenders


def wait_until_serving(contender: Contender, *, log: Path) -> None:
    """Return once a request has been answered; a contender that never does ends the run."""
    body = conversation(500, 500)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", contender.port), timeout=5) as connection:
                connection.sendall((head + body).encode())
                if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        time.sleep(0.2)
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    raise SystemExit(f"{contender.name} does not serve:\n{tail}")


def conversation(num_bytes: int, system_bytes: int, *, stream_us: int | None = None) -> str:
    """A chat of turns whose last message differs from request to request.

    `stream_us` asks for a stream of 64 tokens, one every so many microseconds.
    """
    rng = random.Random(7)
    messages = [{"role": "system", "content": _text(system_bytes, rng)}]
    fields: Mapping[str, object] = {
        "model": "fake",
        "stream": stream_us is not None,
        "max_tokens": 16 if stream_us is None else 64,
        "temperature": 0,
        "seed": stream_us or 0,
        "messages": messages,
    }
    question = {"role": "user", "content": f"And now? {NONCE}"}
    size = len(json.dumps(fields)) + len(json.dumps(question))
    while size + TURN_BYTES < num_bytes:
        role = "user" if len(messages) % 2 else "assistant"
        messages.append({"role": role, "content": _text(TURN_BYTES, rng)})
        size += len(json.dumps(messages[-1])) + 1
    messages.append(question)
    return json.dumps(fields, separators=(",", ":"))


def unseen(num_bytes: int, new_bytes: int) -> str:
    """A body whose last message has `new_bytes` that come after what differs."""
    rng = random.Random(7)
    shared = {"role": "system", "content": _text(num_bytes - new_bytes, rng)}
    new = {"role": "user", "content": f"{NONCE} {_text(new_bytes, rng)}"}
    fields = {"model": "fake", "stream": False, "max_tokens": 16, "messages": [shared, new]}
    return json.dumps(fields, separators=(",", ":"))


def _text(num_bytes: int, rng: random.Random) -> str:
    vocabulary = TEXT.split()
    words: list[str] = []
    num = 0
    while num < num_bytes:
        words.append(rng.choice(vocabulary))
        num += len(words[-1]) + 1
    return " ".join(words)[:num_bytes]
