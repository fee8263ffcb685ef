"""How many requests a second the simulator gets through, and how that grows.

Poisson arrivals, 2.5 a second and worker (20 for 8 workers), 3,000 tokens in and 300 out, a 70B
model on 8 H100 with 8,192 tokens a step, cache-aware routing with KV events. By default no two
prompts share anything, which is the most work a request can be; `--shared` of the 3,000 tokens
are one system prompt.

`--dynamo-python` is the interpreter of a virtual environment with ai-dynamo-runtime
(`simulator_rivals.py`): its replay is then run in turns with ours, and the ratio printed.

Prints processor time, the best of `--repeat` runs, and beside each row a yardstick measured in
the same minute: how long a fixed loop of plain Python takes, because a shared machine may be
several times slower than itself a moment before.
"""

import argparse
import gc
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from simulator_rivals import ROUTERS, Load, dynamo_seconds

from expediter.config import KVCacheConfig, RoutingConfig, SchedulerConfig
from expediter.routing.cache_aware import CacheAware
from expediter.simulation.experiment import simulate
from expediter.simulation.fleet import FleetModel
from expediter.simulation.grid import packaged_grid
from expediter.simulation.roofline import GPUS, MODELS, kv_capacity_tokens
from expediter.simulation.worker import WorkerModel
from expediter.workload.transcript import EMPTY
from expediter.workload.turn import Turn

RATE_PER_WORKER = 2.5
NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 3000, 300
GRID = "llama3-70b_h100_sxm_sglang_tp8"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size of the problem; times are processor seconds."""

    block_size: int
    num_workers: int
    num_requests: int
    seconds: float
    requests_per_second: float
    jumps_per_request: float
    steps_per_request: float
    yardstick_ms: float
    rivals: dict[str, float]  # requests a second


def turns(num: int, *, num_workers: int, block_size: int, num_shared: int) -> list[Turn]:
    """The workload, its blocks named beforehand."""
    rng, now, found = random.Random(0), 0.0, []
    system = EMPTY.then("system", num_shared)
    for number in range(num):
        now += rng.expovariate(RATE_PER_WORKER * num_workers)
        prompt = system.then(f"user {number}", NUM_PROMPT_TOKENS - num_shared)
        answer = prompt.then(f"answer {number}", NUM_OUTPUT_TOKENS)
        answer.block_hashes(block_size)
        found.append(Turn(arrival_time=now, transcript=answer))
    return found


def fleet(num_workers: int, block_size: int) -> FleetModel:
    kv_tokens = kv_capacity_tokens(MODELS["llama3-70b"], GPUS["h100"], num_gpus=8)
    return FleetModel(
        num_workers=num_workers,
        worker=WorkerModel(
            cost=packaged_grid(GRID),
            kv_tokens=kv_tokens,
            kv_cache=KVCacheConfig(block_size=block_size),
            scheduler=SchedulerConfig(max_batched_tokens=8192, max_running=256),
        ),
        routing=RoutingConfig(block_size=block_size),
    )


def policy(rng: random.Random) -> CacheAware:
    del rng
    return CacheAware(load_weight=0.0, max_imbalance=0.2, slack_tokens=1024)


def yardstick() -> float:
    """Milliseconds for a fixed amount of Python."""
    table: dict[int, tuple[int, bool]] = {}
    started = time.process_time()
    gc.disable()  # it would walk whatever else there is
    for i in range(400_000):
        table[i & 1023] = (i, table.get(i & 511) is None)
    gc.enable()
    return (time.process_time() - started) * 1e3


def measure(block_size: int, num_workers: int, num_requests: int, args: argparse.Namespace) -> Row:
    model = fleet(num_workers, block_size)
    best, pace = float("inf"), float("inf")
    rivals: dict[str, float] = {}
    for _ in range(args.repeat):
        workload = turns(
            num_requests, num_workers=num_workers, block_size=block_size, num_shared=args.shared
        )
        pace = min(pace, yardstick())
        gc.collect()
        started = time.process_time()
        run = simulate(model, workload, policy=policy, name="cache-aware")
        best = min(best, time.process_time() - started)
        pace = min(pace, yardstick())
        for name, router in ROUTERS.items() if args.dynamo_python else ():
            theirs = dynamo_seconds(args.dynamo_python, load(model, num_requests), router=router)
            rivals[name] = max(rivals.get(name, 0.0), num_requests / theirs)
        if not all(answer.is_complete for answer in run.answers):
            sys.exit("some answers are not complete")
    return Row(
        block_size=block_size,
        num_workers=num_workers,
        num_requests=num_requests,
        seconds=best,
        requests_per_second=num_requests / best,
        jumps_per_request=sum(w.num_jumps for w in run.workers) / num_requests,
        steps_per_request=sum(w.num_steps for w in run.workers) / num_requests,
        yardstick_ms=pace,
        rivals=rivals,
    )


def load(model: FleetModel, num_requests: int) -> Load:
    """The same for others."""
    return Load(
        num_workers=model.num_workers,
        block_size=model.routing.block_size,
        kv_tokens=model.worker.kv_tokens,
        num_requests=num_requests,
        rate=RATE_PER_WORKER * model.num_workers,
        num_prompt_tokens=NUM_PROMPT_TOKENS,
        num_output_tokens=NUM_OUTPUT_TOKENS,
    )


def rivals_table(rows: list[Row]) -> Table:
    found = Table(title="Others on the same workload, and how many times as fast ours is")
    for name in ("block", "workers", "requests", "simulator", "req/s", "ours"):
        found.add_column(name, justify="right")
    for row in rows:
        for name, theirs in row.rivals.items():
            size = (str(row.block_size), str(row.num_workers), f"{row.num_requests:,}")
            ratio = f"{row.requests_per_second / theirs:.2f} x"
            found.add_row(*size, name, f"{theirs:,.0f}", ratio)
    return found


def table(rows: list[Row]) -> Table:
    found = Table(title="Simulated requests a second of processor time")
    for name in ("block", "workers", "requests", "req/s", "µs/req", "jumps/req", "steps/req"):
        found.add_column(name, justify="right")
    found.add_column("yardstick ms", justify="right")
    for row in rows:
        found.add_row(
            str(row.block_size),
            str(row.num_workers),
            f"{row.num_requests:,}",
            f"{row.requests_per_second:,.0f}",
            f"{1e6 / row.requests_per_second:,.0f}",
            f"{row.jumps_per_request:.1f}",
            f"{row.steps_per_request:.0f}",
            f"{row.yardstick_ms:.0f}",
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--workers", type=int, nargs="+", default=[8])
    parser.add_argument("--requests", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--shared", type=int, default=0, help="tokens of a common system prompt")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dynamo-python", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [
        measure(block_size, num_workers, num_requests, args)
        for block_size in args.blocks
        for num_workers in args.workers
        for num_requests in args.requests
    ]
    console = Console(width=110)
    console.print(table(rows))
    if args.dynamo_python:
        console.print(rivals_table(rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
