"""Time to first token in a conversation, turn by turn, through the gateway.

Three kinds of request, each with the same text at the same turn:

  warm    the next turn of one conversation: its history is cached where it was served
  cold    the same prompt under a cache salt nobody used: nothing of it can be cached
  stamped the same prompt with the time at its front: a new first block, so no block is a hit

The kinds take turns within every turn, so what else the machine does hits all alike. Starts a
fleet of its own unless `--url` names one. Prints a table and, with `--json`, writes a file.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

WORDS = ["river", "stone", "lamp", "paper", "winter", "garden", "seven", "quiet", "copper"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One streamed request: `ttft` in seconds, counts in tokens."""

    kind: str
    turn: int
    ttft: float
    prompt_tokens: int
    cached_tokens: int
    worker: str
    reason: str
    text: str


def text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def ask(client: httpx.Client, body: dict[str, Any], *, kind: str, turn: int) -> Sample:
    """Send one request and time its first piece of text."""
    options = {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
    started, ttft, pieces = time.perf_counter(), None, []
    usage: dict[str, Any] = {}
    with client.stream("POST", "/v1/chat/completions", json=body | options) as response:
        if response.status_code != 200:
            sys.exit(f"{response.status_code}: {response.read().decode()}")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    ttft = ttft or time.perf_counter() - started
                    pieces.append(choice["delta"]["content"])
            usage = event.get("usage") or usage
    headers = response.headers
    return Sample(
        kind=kind,
        turn=turn,
        ttft=ttft or time.perf_counter() - started,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        worker=headers.get("x-expediter-worker", "?"),
        reason=headers.get("x-expediter-reason", "?"),
        text="".join(pieces),
    )


def converse(client: httpx.Client, args: argparse.Namespace, *, seed: int) -> Iterator[Sample]:
    """One conversation of `args.turns` turns; yields three samples a turn."""
    rng = random.Random(seed)
    system = {"role": "system", "content": text(rng, args.system_words)}
    history: list[dict[str, str]] = []
    for turn in range(args.turns):
        history.append({"role": "user", "content": f"Question {turn}: {text(rng, 12)}?"})
        body = {"model": args.model, "max_tokens": args.max_tokens}
        stamp = {"role": "system", "content": f"{time.time_ns()} {system['content']}"}
        salt = f"{seed}-{turn}-{time.time_ns()}"
        warm = ask(client, body | {"messages": [system, *history]}, kind="warm", turn=turn)
        yield warm
        cold = body | {"messages": [system, *history], "cache_salt": salt}
        yield ask(client, cold, kind="cold", turn=turn)
        yield ask(client, body | {"messages": [stamp, *history]}, kind="stamped", turn=turn)
        history.append({"role": "assistant", "content": warm.text})


@contextlib.contextmanager
def fleet(args: argparse.Namespace) -> Iterator[str]:
    """The gateway's address: `--url`, or a fleet that lives as long as this block."""
    if args.url:
        yield args.url
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "expediter", "up", "--workers", str(args.workers)]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=sys.stderr)
    url = f"http://127.0.0.1:{port}"
    try:
        while not ready(url, args.workers):
            if process.poll() is not None:
                sys.exit("the fleet did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def ready(url: str, num_workers: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(f"{url}/ready")
        return bool(answer.json()["num_ready_workers"] >= num_workers)
    return False


def table(samples: list[Sample]) -> Table:
    """A row a turn: medians over the conversations."""
    result = Table(title="Time to first token, median milliseconds")
    for heading in ("turn", "prompt", "cached", "warm", "cold", "stamped", "cold / warm"):
        result.add_column(heading, justify="right")
    for turn in sorted({sample.turn for sample in samples}):
        here = {
            kind: [s for s in samples if s.turn == turn and s.kind == kind]
            for kind in ("warm", "cold", "stamped")
        }
        ttft = {kind: statistics.median(s.ttft for s in found) for kind, found in here.items()}
        result.add_row(
            str(turn + 1),
            f"{statistics.median(s.prompt_tokens for s in here['warm']):.0f}",
            f"{statistics.median(s.cached_tokens for s in here['warm']):.0f}",
            *(f"{ttft[kind] * 1000:.0f}" for kind in ("warm", "cold", "stamped")),
            f"{ttft['cold'] / ttft['warm']:.1f}",
        )
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time to first token in a conversation.")
    parser.add_argument("--url", help="a gateway that runs already")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--system-words", type=int, default=1500, help="a token a word")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--json", type=Path, help="write every sample here")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    with fleet(args) as url, httpx.Client(base_url=url, timeout=600.0) as client:
        seeds = range(args.conversations)
        samples = [sample for seed in seeds for sample in converse(client, args, seed=seed)]
    Console().print(table(samples))
    machine = {"platform": platform.platform(), "cores": len(os.sched_getaffinity(0))}
    summary = {"machine": machine, "samples": [asdict(sample) for sample in samples]}
    if args.json:
        args.json.write_text(json.dumps(summary, indent=1), "utf-8")


if __name__ == "__main__":
    main()
