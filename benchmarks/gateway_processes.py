"""What more gateway processes gain, and what a request's record costs.

    python benchmarks/gateway_processes.py --loadgen FOLDER [--rounds 5] [--cores 1,2] [--json FILE]

One process, two, and one with an access log run at once before the same two workers and are
measured in turn; a figure is the median over rounds. The gateways have `--cores`, the load
generator and the workers core 0. More processes can only gain where each has a core of its own,
which takes three cores or more; CPU time for a request tells on any machine.

Then the record itself, in this process: what it takes to count a request in the histograms, and to
write its line into the access log.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway import SYSTEM_BYTES, build
from gateway_contenders import (
    LOAD_CORE,
    Contender,
    conversation,
    free_port,
    pinned,
    wait_until_serving,
)
from gateway_tables import Figures, table

from expediter.cluster.decisions import Decision
from expediter.gateway.access_log import AccessLog
from expediter.gateway.observations import Observations
from expediter.gateway.request import HttpRequest
from expediter.gateway.story import Story
from expediter.load import WorkerId
from expediter.routing.view import RoutedRequest

NUM_CONNECTIONS = 64
NUM_RECORDS = 20_000
NUM_REPEATS = 7
STOP_SECONDS = 15.0
COLUMNS = {"rps": "req/s", "cpu_us": "CPU us/req", "p50_us": "p50 us", "p99_us": "p99 us"}
GATEWAYS = {
    "one process": ("--processes", "1"),
    "two processes": ("--processes", "2"),
    "one, access log": ("--set", "gateway.access-log.path=access.log"),
}


@contextmanager
def gateway(options: tuple[str, ...], folder: Path, cores: str, urls: list[str]) -> Iterator[int]:
    """A running gateway's port."""
    port = free_port()
    command = ["taskset", "-c", cores, sys.executable, "-m", "expediter", "--log-level", "warning"]
    command += ["serve", "--port", str(port), "--policy", "round-robin", *options]
    command += ["--set", "gateway.admin.enabled=false"]
    command += [part for url in urls for part in ("--worker", url)]
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def serving(pid: int) -> list[int]:
    """The processes that serve: the children, where there are any."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    return [int(each) for each in children] or [pid]


def port_of(pid: int) -> int:
    """The port in a gateway's command line."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return int(command[command.index(b"--port") + 1])


def measure(generator: Path, body: Path, pid: int, seconds: float) -> Figures:
    """One run of the load generator against one gateway, at once and at a low rate."""
    pids = ",".join(map(str, serving(pid)))
    command = ["taskset", "-c", str(LOAD_CORE), str(generator), "-p", str(port_of(pid))]
    command += ["-b", str(body), "-w", "0.5", "-d", str(seconds), "-P", pids]
    full = json.loads(subprocess.check_output([*command, "-c", str(NUM_CONNECTIONS)]))
    low = json.loads(subprocess.check_output([*command, "-c", "16", "-r", "100"]))
    return {
        "rps": full["rps"],
        "cpu_us": sum(full["cpu"]) / (full["rps"] * seconds) * 1e6,
        "p50_us": low["lat"][0],
        "p99_us": low["lat"][1],
    }


def compare(sources: Path, folder: Path, *, cores: str, rounds: int) -> list[dict[str, Figures]]:
    """Every gateway once a round."""
    generator, worker = build(sources, folder)
    body = folder / "body.json"
    body.write_text(conversation(2048, SYSTEM_BYTES), "utf-8")
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        for port in ports:
            command = [str(worker), str(port), "16", "0", "0"]
            stack.enter_context(pinned(LOAD_CORE, command, log=folder / f"worker-{port}.log"))
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        pids = {
            name: stack.enter_context(gateway(options, folder, cores, urls))
            for name, options in GATEWAYS.items()
        }
        for name, pid in pids.items():
            contender = Contender(name=name, port=port_of(pid), pid=pid)
            wait_until_serving(contender, log=folder / f"{port_of(pid)}.log")
        return [
            {name: measure(generator, body, pid, 2.0) for name, pid in pids.items()}
            for _ in range(rounds)
        ]


def medians(rounds: list[dict[str, Figures]]) -> dict[str, Figures]:
    return {
        name: {column: statistics.median(r[name][column] for r in rounds) for column in COLUMNS}
        for name in GATEWAYS
    }


def records(folder: Path) -> dict[str, float]:
    """Microseconds for a request, of each part of its record."""
    observations = Observations(is_served=lambda _: True)
    log = AccessLog(str(folder / "records.log"))
    story = example()
    return {"histograms": timed(observations.add, story), "access log": timed(log.add, story)}


def timed(add: Callable[[Story], None], story: Story) -> float:
    taken = []
    for _ in range(NUM_REPEATS):
        begin = time.process_time()
        for _ in range(NUM_RECORDS):
            add(story)
        taken.append((time.process_time() - begin) / NUM_RECORDS * 1e6)
    return statistics.median(taken)


def example() -> Story:
    """A request that was answered."""
    decision = Decision(
        request_id="r" * 32,
        worker_id=WorkerId("worker-1"),
        reason="longest-match",
        num_tokens=1000,
        matched_tokens=512,
        scores={},
        placed_at=1.001,
        num_tries=1,
        status=200,
        ttft=0.05,
        is_answered=True,
        cached_tokens=512,
        prompt_tokens=1000,
        output_tokens=100,
    )
    return Story(
        request=HttpRequest(method=b"POST", target=b"/v1/chat/completions"),
        client=b"10.0.0.1",
        arrived_at=1.0,
        request_id=b"r" * 32,
        slo_class="interactive",
        routed=RoutedRequest(request_id="r" * 32, model="llama"),
        sent_at=1.0005,
        ended_at=2.0,
        decision=decision,
        status=200,
        num_bytes=5000,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loadgen", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    last = (os.cpu_count() or 1) - 1
    parser.add_argument("--cores", default=f"1-{last}" if last > 1 else "0-1", help="gateways'")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gateway-processes-") as name:
        folder = Path(name)
        rounds = compare(options.loadgen, folder, cores=options.cores, rounds=options.rounds)
        costs = records(folder)
    print(f"{os.cpu_count()} cores; load average before: {before:.1f}")
    print(table(medians(rounds), COLUMNS))
    gains = [r["two processes"]["rps"] / r["one process"]["rps"] for r in rounds]
    print(f"two processes / one, req/s: {statistics.median(gains):.2f}")
    for part, micros in costs.items():
        print(f"{part}: {micros:.2f} us a request")
    if options.json is not None:
        options.json.write_text(json.dumps({"rounds": rounds, "costs": costs}, indent=1))


if __name__ == "__main__":
    main()
