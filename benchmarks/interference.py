"""What running streams feel of long prompts that arrive, and how long those wait, in three fleets.

Two workers of this machine, each pinned to a core of its own with one torch thread; gateway and
this client share the first worker's core. The fleets:

    colocated N     both workers take everything; a step computes at most N tokens (chunked prefill)
    unchunked       the same, and a prompt is computed in one step, however long it is
    disaggregated   the first worker computes prompts, the second generates; every prompt is split

So every fleet has the same two cores. In each, some streams run alone first (quiet), which is what
there is without interference; then, while streams follow each other, long prompts that nobody has
cached arrive at a steady rate (busy). `gap` is the time between two tokens of a stream at the
client, `TPOT` a stream's mean gap from the first prompt's arrival to the last prompt's answer;
`x` is the p99 of busy over that of quiet, of the same fleet. `TTFT` is that of the long prompts.

    python benchmarks/interference.py [--prompts 5] [--prompt-tokens 2048] [--interval 5] ...

takes about four minutes and needs the extra `bench`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np

from expediter.bench.endpoint import Endpoint, open_endpoint, refusal
from expediter.bench.reply import Ask, Reply
from expediter.bench.settings import EndpointConfig

UNLIMITED = 1 << 20  # tokens in a step: any prompt
MIN_SECONDS = 1.0  # of a stream within the time that counts
START_SECONDS = 120.0
PATH = "/v1/completions"
OPENINGS = (
    "Once upon a time there was a small village by the sea, and",
    "The history of the steam engine begins in the mines, where",
    "To bake a good loaf of bread you first have to",
    "The old lighthouse keeper opened his book and wrote that",
)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Two workers: their roles, and the tokens that a step of theirs computes at most."""

    name: str
    roles: tuple[str, str] = ("both", "both")
    budget: int = UNLIMITED


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What the client saw, in seconds."""

    tpots: list[float]
    gaps: list[float]
    ttfts: list[float]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One fleet."""

    fleet: str
    quiet: Phase
    busy: Phase


class Load:
    """Requests for one gateway. Every text is new, so nothing of it is cached."""

    def __init__(self, endpoint: Endpoint, options: argparse.Namespace) -> None:
        self._endpoint = endpoint
        self._options = options
        self._rng = random.Random(1)
        self._num_streams = 0

    async def warm_up(self) -> None:
        """One of everything, on every worker."""
        await asyncio.gather(self._stream(8), self._stream(8), self._prompt(512))

    async def quiet(self) -> Phase:
        """Streams alone, each once."""
        options = self._options
        streams = (self._stream(options.stream_tokens) for _ in range(options.streams))
        return phase(await asyncio.gather(*streams), [], window=(0.0, float("inf")))

    async def busy(self) -> Phase:
        """Streams one after the other, while prompts arrive; until the last prompt is answered."""
        options, loop = self._options, asyncio.get_running_loop()
        last_begun = asyncio.Event()
        followed = [asyncio.create_task(self._follow(last_begun)) for _ in range(options.streams)]
        await asyncio.sleep(1.0)
        started, asked = loop.time(), []
        for number in range(options.prompts):
            await asyncio.sleep(started + number * options.interval - loop.time())
            asked.append(asyncio.create_task(self._prompt(options.prompt_tokens)))
        prompts = await asyncio.gather(*asked)
        ended = loop.time()
        last_begun.set()
        replies = [reply for each in await asyncio.gather(*followed) for reply in each]
        return phase(replies, prompts, window=(started, ended))

    async def _follow(self, last_begun: asyncio.Event) -> list[Reply]:
        replies = []
        while not last_begun.is_set():
            replies.append(await self._stream(self._options.stream_tokens))
        return replies

    async def _stream(self, num_tokens: int) -> Reply:
        self._num_streams += 1
        opening = OPENINGS[self._num_streams % len(OPENINGS)]
        return await self._send(f"{self._num_streams}. {opening}", num_tokens)

    async def _prompt(self, num_tokens: int) -> Reply:
        tokens = [self._rng.randrange(1000, 20_000) for _ in range(num_tokens)]
        return await self._send(tokens, self._options.answer_tokens)

    async def _send(self, prompt: str | list[int], max_tokens: int) -> Reply:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        reply = await self._endpoint.send(Ask(path=PATH, body=json.dumps(streamed).encode()))
        if not reply.is_complete:
            sys.exit(f"a request failed: {refusal(reply)}")
        return reply


def phase(streams: Sequence[Reply], prompts: Sequence[Reply], *, window: Sequence[float]) -> Phase:
    """Of the streams, what began within `window`: also a gap that ends after it."""
    tpots, gaps = [], []
    for reply in streams:
        times = [at for at in reply.token_times if at >= window[0]]
        times = times[: bisect_right(times, window[1]) + 1]
        gaps += [after - before for before, after in pairwise(times)]
        if times and times[-1] - times[0] >= MIN_SECONDS:
            tpots.append((times[-1] - times[0]) / (len(times) - 1))
    return Phase(tpots=tpots, gaps=gaps, ttfts=[reply.ttft or 0.0 for reply in prompts])


@contextlib.asynccontextmanager
async def running(fleet: Fleet, model: str | None, cores: list[int]) -> AsyncIterator[str]:
    """The gateway's address; workers and gateway stop in the end."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        urls: list[str] = []
        for number, role in enumerate(fleet.roles):
            urls.append(f"http://127.0.0.1:{(port := free_port())}")
            flags = ["worker", "--port", f"{port}", *(("--model", model) if model else ())]
            settings = worker_settings(fleet, role, name=f"{role}-{number}")
            processes.append(start(flags, settings, core=cores[number % len(cores)]))
        await asyncio.gather(*(until(f"{url}/health") for url in urls))
        gateway = f"http://127.0.0.1:{(port := free_port())}"
        flags = ["serve", "--port", f"{port}"]
        for role, url in zip(fleet.roles, urls, strict=True):
            flags += ["--worker" if role == "both" else f"--{role}", url]
        settings = ["gateway.disaggregation.split=always", "gateway.admin.enabled=false"]
        processes.append(start(flags, settings, core=cores[0]))
        await until(f"{gateway}/ready", num_ready_workers=2)
        yield gateway
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def worker_settings(fleet: Fleet, role: str, *, name: str) -> list[str]:
    return [
        f"worker.worker-id={name}",
        f"worker.role={role}",
        f"worker.scheduler.max-batched-tokens={fleet.budget}",
        "worker.engine.num-threads=1",
        "worker.shutdown-seconds=0.1",
    ]


def start(flags: list[str], settings: list[str], *, core: int) -> subprocess.Popen[bytes]:
    for setting in settings:
        flags = [*flags, "--set", setting]
    process = subprocess.Popen([sys.executable, "-m", "expediter", *flags])
    os.sched_setaffinity(process.pid, {core})
    return process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until(url: str, **fields: object) -> None:
    """Returns once `url` answers 200, with these fields of an object if there are any."""
    deadline = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient() as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                answer = await client.get(url)
                if answer.is_success and (not fields or fields.items() <= answer.json().items()):
                    return
            await asyncio.sleep(0.2)
    sys.exit(f"{url} did not start within {START_SECONDS} s")


async def measure(fleet: Fleet, options: argparse.Namespace, cores: list[int]) -> Outcome:
    """One fleet, from its start to its end."""
    async with (
        running(fleet, options.model, cores) as url,
        open_endpoint(EndpointConfig(url=url)) as endpoint,
    ):
        load = Load(endpoint, options)
        await load.warm_up()
        quiet, busy = await load.quiet(), await load.busy()
        if "decode" in fleet.roles:
            check_split(url, options.prompts + 1)
    return Outcome(fleet=fleet.name, quiet=quiet, busy=busy)


def check_split(gateway: str, num_prompts: int) -> None:
    """The run is void unless every long prompt was split."""
    decisions = httpx.get(f"{gateway}/decisions", params={"limit": 1000}).json()
    num_split = sum(each["reason"] == "split" and not each.get("fallback") for each in decisions)
    if num_split < num_prompts:
        sys.exit(f"of {num_prompts} prompts {num_split} were split: {decisions}")


def show(outcomes: Sequence[Outcome]) -> None:
    """A row for each fleet."""
    names = "quiet TPOT p99,TPOT p50,p99,x,quiet gap p99,gap p99,x,longest,TTFT p50,p99"
    print("| fleet | " + names.replace(",", " | ") + " |\n|---|" + "--:|" * 10)
    for outcome in outcomes:
        print(f"| {outcome.fleet} | " + " | ".join(cells(outcome)) + " |")


def cells(outcome: Outcome) -> list[str]:
    """Milliseconds, and seconds for TTFT."""
    quiet, busy = outcome.quiet, outcome.busy
    tpot = [percentile(quiet.tpots, 99), percentile(busy.tpots, 50), percentile(busy.tpots, 99)]
    gap = [percentile(quiet.gaps, 99), percentile(busy.gaps, 99), percentile(busy.gaps, 100)]
    found = [f"{seconds * 1e3:.1f}" for seconds in tpot + gap]
    found.insert(3, f"{tpot[2] / tpot[0]:.2f}")
    found.insert(6, f"{gap[1] / gap[0]:.2f}")
    return found + [f"{percentile(busy.ttfts, rank):.2f}" for rank in (50, 99)]


def percentile(values: Sequence[float], rank: int) -> float:
    return float(np.percentile(values, rank)) if values else float("nan")


def fleets(budgets: Sequence[int]) -> list[Fleet]:
    chunked = [Fleet(name=f"colocated {budget}", budget=budget) for budget in budgets]
    split = Fleet(name="disaggregated", roles=("prefill", "decode"), budget=2048)
    return [Fleet(name="unchunked"), *chunked, split]


async def run(options: argparse.Namespace) -> list[Outcome]:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    return [
        await measure(fleet, options, cores)
        for fleet in fleets(options.budgets)
        if not options.only or fleet.name in options.only
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", help="folder or GGUF file; the default model without")
    parser.add_argument("--prompts", type=int, default=5, help="long ones")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--answer-tokens", type=int, default=8, help="of a long prompt")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between long prompts")
    parser.add_argument("--streams", type=int, default=4, help="at the same time")
    parser.add_argument("--stream-tokens", type=int, default=320)
    parser.add_argument("--budgets", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--only", nargs="+", help="names of fleets")
    parser.add_argument("--json", type=Path, help="where to write every figure")
    options = parser.parse_args()
    outcomes = asyncio.run(run(options))
    show(outcomes)
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))


if __name__ == "__main__":
    main()
