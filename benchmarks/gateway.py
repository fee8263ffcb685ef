"""What a gateway costs, beside a direct connection and two others written in Rust.

    python benchmarks/gateway.py --loadgen FOLDER [--quick] [--json FILE]
        [--sglang-python VENV/bin/python] [--vllm-python VENV/bin/python] [--tokenizer GGUF]

All contenders run at once and are measured in turn, in rounds; a figure is the median over
rounds, and ratios are taken within a round. `docs/benchmarks.md` says what each column means.
FOLDER holds `lg.c`, a load generator, and `worker.c`, a fake worker that answers at once.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway_contenders import (
    LOAD_CORE,
    Contender,
    Setup,
    conversation,
    running,
    unseen,
)
from gateway_tables import Figures, table

Outcome = dict[str, Any]
NUM_STREAMS = 200
NUM_TOKENS = 64
PACED_US = 20_000
FLOODED_US = 1_000
SYSTEM_BYTES = 1_878  # of a body of 2 KB
COLD_PER_SECOND = 20

COLUMNS = {
    "2k_rps": "req/s 2 KB",
    "2k_cpu_us": "CPU us/req",
    "100k_rps": "req/s 100 KB",
    "100k_cpu_us": "CPU us/req",
    "new40k_rps": "req/s 40 KB new",
    "p50_us": "p50 us",
    "p99_us": "p99 us",
    "chunks_s": "chunks/s",
    "cpu_100k_chunks": "CPU s/100k chunks",
    "ttft_us": "TTFT us",
    "chunk_p99_us": "chunk p99 us",
    "rss_mb": "RSS MB",
    "cold_chunk_p50_us": "chunk p50 us, cold",
    "cold_chunk_p99_us": "chunk p99 us, cold",
}
ADDED = (
    *("p50_us", "p99_us", "ttft_us", "chunk_p99_us"),
    *("cold_chunk_p50_us", "cold_chunk_p99_us"),
)
RIVALS = {
    "expediter round-robin": ("sglang round-robin", "vllm round-robin"),
    "expediter cache-aware, text": ("sglang cache-aware", "vllm cache-aware"),
    "expediter cache-aware, tokens": ("sglang cache-aware", "vllm cache-aware"),
}
RATES = ("2k_rps", "100k_rps", "chunks_s")
COSTS = ("2k_cpu_us", "100k_cpu_us", "cpu_100k_chunks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load generator's arguments, and what to make of its report."""

    name: str
    arguments: tuple[str, ...]
    body: str
    read: Callable[[Outcome, float], Figures]  # the report, and the seconds it covers
    min_seconds: float = 0.0
    beside: str | None = None  # a body sent `COLD_PER_SECOND` times a second meanwhile


def loads(*, only: frozenset[str]) -> list[Load]:
    """What every contender is put under, in this order."""
    closed = ("-c", "64")
    every = [
        Load(
            name="2k", arguments=closed, body=conversation(2048, SYSTEM_BYTES), read=_closed("2k")
        ),
        Load(
            name="100k", arguments=closed, body=conversation(102_400, 20_000), read=_closed("100k")
        ),
        Load(name="new40k", arguments=closed, body=unseen(102_400, 40_000), read=_closed("new40k")),
        Load(
            name="latency",
            arguments=("-c", "16", "-r", "100"),
            body=conversation(2048, SYSTEM_BYTES),
            read=lambda out, _: {"p50_us": out["lat"][0], "p99_us": out["lat"][1]},
        ),
        *streams(),
    ]
    return [load for load in every if not only or load.name in only]


def streams() -> list[Load]:
    arguments = ("-s", "-c", str(NUM_STREAMS))
    return [
        Load(
            name="flood",
            arguments=arguments,
            body=conversation(2048, SYSTEM_BYTES, stream_us=FLOODED_US),
            read=lambda out, _: {"chunks_s": out["chunks_s"]},
        ),
        Load(
            name="paced",
            arguments=arguments,
            body=conversation(2048, SYSTEM_BYTES, stream_us=PACED_US),
            read=_paced,
            min_seconds=NUM_TOKENS * PACED_US / 1e6 + 0.3,  # every stream begins again once
        ),
        Load(
            name="cold",
            arguments=arguments,
            body=conversation(2048, SYSTEM_BYTES, stream_us=PACED_US),
            beside=unseen(41_000, 40_000),
            read=lambda out, _: {
                "cold_chunk_p50_us": out["clat"][0],
                "cold_chunk_p99_us": out["clat"][1],
            },
        ),
    ]


def _closed(name: str) -> Callable[[Outcome, float], Figures]:
    def read(out: Outcome, seconds: float) -> Figures:
        figures = {f"{name}_rps": out["rps"]}
        if out["cpu"] and out["done"]:
            figures[f"{name}_cpu_us"] = out["cpu"][0] / (out["rps"] * seconds) * 1e6
        return figures

    return read


def _paced(out: Outcome, seconds: float) -> Figures:
    figures = {"ttft_us": out["ttft"][0], "chunk_p99_us": out["clat"][1]}
    if out["cpu"] and out["chunks_s"]:
        figures["cpu_100k_chunks"] = out["cpu"][0] / (out["chunks_s"] * seconds) * 100_000
        figures["rss_mb"] = out["rss_kb"][0] / 1024
    return figures


class Bench:
    """Runs the load generator and keeps the figures of every round."""

    def __init__(self, generator: Path, folder: Path, *, seconds: float, warm: float) -> None:
        self._generator = generator
        self._folder = folder
        self._seconds = seconds
        self._warm = warm
        self.rounds: list[dict[str, Figures]] = []

    def round(self, contenders: Iterable[Contender], every: Iterable[Load]) -> None:
        """Measure each contender once under each load, one after the other."""
        figures: dict[str, Figures] = defaultdict(dict)
        for load in every:
            for contender in contenders:
                figures[contender.name] |= self._measure(contender, load)
        for name in figures:
            if name != "direct":
                for column in set(ADDED) & set(figures["direct"]) & set(figures[name]):
                    figures[name][column] -= figures["direct"][column]
        self.rounds.append(dict(figures))

    def _measure(self, contender: Contender, load: Load) -> Figures:
        body = self._folder / f"{load.name}.json"
        body.write_text(load.body)
        command = ["taskset", "-c", str(LOAD_CORE), str(self._generator), *load.arguments]
        command += ["-p", str(contender.port), "-b", str(body)]
        seconds = max(self._seconds, load.min_seconds)
        command += ["-d", str(seconds), "-w", str(self._warm)]
        if contender.pid is not None:
            command += ["-P", str(contender.pid)]
        with self._beside(contender, load, seconds):
            out = json.loads(subprocess.check_output(command, timeout=60))
        if out["errs"] or out["bad"]:
            sys.stderr.write(f"{contender.name}, {load.name}: {out['errs']} errors, {out['bad']}\n")
        return load.read(out, seconds) if out["done"] else {}

    @contextmanager
    def _beside(self, contender: Contender, load: Load, seconds: float) -> Iterator[None]:
        """What else is sent meanwhile, until the end."""
        if load.beside is None:
            yield
            return
        body = self._folder / f"{load.name}-beside.json"
        body.write_text(load.beside)
        command = ["taskset", "-c", str(LOAD_CORE), str(self._generator), "-c", "8"]
        command += ["-r", str(COLD_PER_SECOND), "-p", str(contender.port), "-b", str(body)]
        command += ["-w", "0", "-d", str(self._warm + seconds)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            yield
            process.wait(60)

    def medians(self) -> dict[str, Figures]:
        """Each contender's median by column, over the rounds in which it completed anything."""
        return {
            name: {
                column: statistics.median(r[name][column] for r in self.rounds if column in r[name])
                for column in COLUMNS
                if any(column in r[name] for r in self.rounds)
            }
            for name in self.rounds[0]
        }

    def ratios(self) -> dict[str, Figures]:
        """How many times better ours is than a rival: the median of the rounds' ratios."""
        found: dict[str, Figures] = {}
        for ours, rivals in RIVALS.items():
            for theirs in rivals:
                if ours in self.rounds[0] and theirs in self.rounds[0]:
                    found[f"{ours} / {theirs}"] = self._ratios(ours, theirs)
        return found

    def _ratios(self, ours: str, theirs: str) -> Figures:
        found = {}
        for column in (*RATES, *COSTS):
            one, other = (theirs, ours) if column in COSTS else (ours, theirs)
            both = [r for r in self.rounds if column in r[one] and column in r[other]]
            if both:
                found[column] = statistics.median(r[one][column] / r[other][column] for r in both)
        return found


def build(sources: Path, folder: Path) -> tuple[Path, Path]:
    """Compile the load generator and the worker; returns the two programs."""
    compiler = shutil.which("cc") or sys.exit("a C compiler is needed: no cc in PATH")
    programs = folder / "lg", folder / "worker"
    for program in programs:
        source = sources / f"{program.name}.c"
        subprocess.run([compiler, "-O2", "-w", "-o", program, source], check=True)
    return programs


def main() -> None:
    options = arguments()
    setup = Setup(
        expediter=options.expediter,
        sglang_python=present("sglang-router", options.sglang_python),
        vllm_python=present("vllm-router", options.vllm_python),
        tokenizer=present("exact tokens", options.tokenizer),
    )
    seconds, warm, num_rounds = (0.6, 0.3, 1) if options.quick else (2.0, 0.7, options.rounds)
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as name:
        folder = Path(name)
        generator, worker = build(options.loadgen, folder)
        bench = Bench(generator, folder, seconds=seconds, warm=warm)
        every = loads(only=frozenset(options.only))
        with running(setup, worker=worker, folder=folder) as contenders:
            for _ in range(num_rounds):
                bench.round(contenders, every)
    medians, ratios = bench.medians(), bench.ratios()
    print(table(medians, COLUMNS))
    if ratios:
        print("\n" + table(ratios, COLUMNS))
    if options.json is not None:
        report = {"medians": medians, "ratios": ratios, "rounds": bench.rounds}
        options.json.write_text(json.dumps(report, indent=1))


def present(what: str, path: str | None) -> str | None:
    """The path if there is something; otherwise says what is left out, and why."""
    if path is not None and Path(path).exists():
        return path
    reason = "not given" if path is None else f"{path} does not exist"
    sys.stderr.write(f"left out: {what}: {reason}\n")
    return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loadgen", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--expediter", default=str(Path(sys.executable).with_name("expediter")))
    parser.add_argument("--sglang-python", metavar="PYTHON")
    parser.add_argument("--vllm-python", metavar="PYTHON")
    parser.add_argument("--tokenizer", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="names of loads")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
