"""What handing a prompt to another worker costs, by its length: time exposed behind the prefill.

Two workers of this machine, one core each where there are two. For every length a prompt of
random tokens is served three ways: by the decode worker alone, by both at the same time
(`concurrent`: layers are copied while later ones are computed), and by one after the other
(`serial`, vLLM's way). `exposed` is the time from the end of the prefill, as the decode worker
hears of it, until all KV is there; `share` is exposed over prefill. Greedy texts must agree.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

OUTPUT_TOKENS = 8
WAYS = ("alone", "concurrent", "serial")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One request; seconds and bytes. `prefill` is the first leg's time, None without one."""

    way: str
    num_tokens: int
    prefill: float | None
    total: float
    text: str
    num_bytes: int = 0
    hidden_bytes: int = 0
    copying: float = 0.0
    exposed: float = 0.0


class Two:
    """A prefill and a decode worker."""

    def __init__(self, prefill: str, decode: str) -> None:
        self.prefill = httpx.Client(base_url=prefill, timeout=600)
        self.decode = httpx.Client(base_url=decode, timeout=600)
        self.source = self.prefill.get("/kv_transfer_source").raise_for_status().json()

    def alone(self, body: dict[str, Any]) -> Sample:
        """The decode worker does it all."""
        started = time.perf_counter()
        answer = _post(self.decode, body)
        return _sample("alone", answer, prefill=None, started=started)

    def serial(self, body: dict[str, Any]) -> Sample:
        """The second leg after the first is answered."""
        started = time.perf_counter()
        first = _post(self.prefill, _first_leg(body))
        prefill = time.perf_counter() - started
        answer = _post(self.decode, body | {"kv_transfer_params": first["kv_transfer_params"]})
        return _sample("serial", answer, prefill=prefill, started=started)

    def concurrent(self, body: dict[str, Any]) -> Sample:
        """Both legs at once."""
        name, started = uuid.uuid4().hex, time.perf_counter()
        params = {
            "do_remote_prefill": True,
            "transfer_id": name,
            "remote_engine_id": self.source["engine_id"],
            "remote_host": self.source["host"],
            "remote_port": self.source["port"],
        }
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(_post, self.decode, body | {"kv_transfer_params": params})
            _post(self.prefill, _first_leg(body, transfer_id=name))
            prefill = time.perf_counter() - started
            answer = second.result()
        return _sample("concurrent", answer, prefill=prefill, started=started)


def _first_leg(body: dict[str, Any], **more: str) -> dict[str, Any]:
    return body | {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, **more}}


def _post(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/v1/completions", json=body).raise_for_status().json()
    return answer


def _sample(way: str, answer: dict[str, Any], *, prefill: float | None, started: float) -> Sample:
    moved = answer.get("kv_transfer") or {}
    if moved.get("failure"):
        sys.exit(f"a transfer failed: {moved['failure']}")
    return Sample(
        way=way,
        num_tokens=answer["usage"]["prompt_tokens"],
        prefill=prefill,
        total=time.perf_counter() - started,
        text=answer["choices"][0]["text"],
        num_bytes=moved.get("bytes", 0),
        hidden_bytes=moved.get("hidden_bytes", 0),
        copying=moved.get("seconds", 0.0),
        exposed=moved.get("exposed_seconds") or 0.0,
    )


@contextlib.contextmanager
def two_workers(model: str | None, *, chunk: int, dtype: str) -> Iterator[Two]:
    """Started here, each on a core of its own, and stopped in the end."""
    cores = sorted(os.sched_getaffinity(0))
    urls, processes = [], []
    try:
        for number, role in enumerate(("prefill", "decode")):
            port = _free_port()
            urls.append(f"http://127.0.0.1:{port}")
            command = [sys.executable, "-m", "expediter", "worker", "--port", str(port)]
            command += ["--id", role, *(("--model", model) if model else ())]
            for setting in (
                f"worker.role={role}",
                f"worker.scheduler.max-batched-tokens={chunk}",
                f"worker.engine.dtype={dtype}",
                "worker.engine.num-threads=1",
            ):
                command += ["--set", setting]
            process = subprocess.Popen(command)
            os.sched_setaffinity(process.pid, {cores[number % len(cores)]})
            processes.append(process)
        for url in urls:
            _until_healthy(url)
        yield Two(*urls)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until_healthy(url: str, *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").status_code == 200:
                return
        if time.monotonic() > deadline:
            sys.exit(f"{url} did not start within {seconds} s")
        time.sleep(0.2)


def measure(two: Two, lengths: list[int], *, num_rounds: int, seed: int) -> list[Sample]:
    """Every length so many times, in all ways, with prompts that nobody has cached."""
    rng = random.Random(seed)
    samples: list[Sample] = []
    for length in [64, *lengths]:  # the first warms everything up
        for _ in range(num_rounds if length in lengths else 1):
            prompt = [rng.randrange(1000, 20_000) for _ in range(length)]
            found = {}
            for way in WAYS:
                body = {"prompt": prompt, "temperature": 0, "max_tokens": OUTPUT_TOKENS}
                salted = body | {"cache_salt": uuid.uuid4().hex, "ignore_eos": True}
                found[way] = getattr(two, way)(salted)
            if len({sample.text for sample in found.values()}) != 1:
                sys.exit(f"the texts differ: {found}")
            samples += found.values() if length in lengths else []
    return samples


def table(samples: list[Sample]) -> Table:
    """Medians by length and way."""
    shown = Table("tokens", "way", "prefill s", "total s", "MiB", "GB/s", "hidden", "exposed ms")
    shown.add_column("share")
    for length in sorted({sample.num_tokens for sample in samples}):
        for way in WAYS:
            group = [s for s in samples if (s.num_tokens, s.way) == (length, way)]
            shown.add_row(str(length), way, *_columns(group))
    return shown


def _columns(group: list[Sample]) -> list[str]:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    total = f"{median([s.total for s in group]):.3f}"
    if group[0].way == "alone":
        return ["", total, "", "", "", "", ""]
    prefill = [s.prefill or 0.0 for s in group]
    return [
        f"{median(prefill):.3f}",
        total,
        f"{group[0].num_bytes / 2**20:.1f}",
        f"{median([s.num_bytes / s.copying / 1e9 for s in group]):.1f}",
        f"{median([s.hidden_bytes / s.num_bytes for s in group]):.0%}",
        f"{median([s.exposed * 1000 for s in group]):.1f}",
        f"{median([s.exposed / p for s, p in zip(group, prefill, strict=True)]):.1%}",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", help="folder or GGUF file; the default model without")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--chunk", type=int, default=512, help="tokens in a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write every sample")
    options = parser.parse_args()
    with two_workers(options.model, chunk=options.chunk, dtype=options.dtype) as two:
        samples = measure(two, options.lengths, num_rounds=options.rounds, seed=options.seed)
    Console().print(table(samples))
    if options.json:
        options.json.write_text(json.dumps([asdict(sample) for sample in samples], indent=1))


if __name__ == "__main__":
    main()
