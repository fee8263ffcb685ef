"""Which policy wins on Mooncake's traces, by how much, and on generated workloads.

Eight workers, each Llama-3-70B on 8 H100. Load 100 % is what they could do if every token that was
ever computed by any of them were a hit: by the regressions, with decoding at batch 32.
"""

from functools import lru_cache
from pathlib import Path

from expediter.routing.gpu_cost import LLAMA3_70B_8XH100_SGLANG
from expediter.simulation.report import Objective, RunReport
from expediter.workload.catalog import named_workload
from expediter.workload.streams import faster
from expediter.workload.traces import read_mooncake
from expediter.workload.turn import Turn
from experiments.running import (
    GPUS,
    Case,
    Make,
    Row,
    Table,
    fleet,
    ms,
    overall,
    run_all,
    traces,
)

POLICIES = (
    "random",
    "round-robin",
    "least-loaded",
    "sticky",
    "sglang",
    "dynamo",
    "cache-aware",
    "preble",
    "slo",
)
BLOCK = 512
LOADS = (0.3, 0.6, 0.8, 1.2)
GENERATED = {"chat": (30.0, 70.0), "agents": (40.0,), "documents": (25.0,)}
OBJECTIVE = Objective(ttft=2.0, tpot=0.05)
COLUMNS = (
    "load",
    "policy",
    "TTFT p50 ms",
    "mean",
    "p99",
    "TPOT p50 ms",
    "p99 ",
    "in SLO %",
    "goodput/s a GPU",
    "hit rate %",
)


def run(*, quick: bool) -> list[Table]:
    """A table for each trace, if they are there, and one for the generated workloads."""
    tables = [_generated(quick=quick)]
    folder = traces()
    if folder is None:
        return tables
    for trace in ("conversation", "synthetic"):
        path = folder / "mooncake" / f"{trace}_trace.jsonl"
        tables.append(_trace(trace, path, quick=quick))
    return tables


def capacity(turns: list[Turn], *, num_workers: int) -> float:
    """Requests a second at load 100 %."""
    cost, seen, seconds = LLAMA3_70B_8XH100_SGLANG, set[bytes](), 0.0
    for turn in turns:
        names = turn.prompt.block_hashes(BLOCK)
        num_hit = next((i for i, name in enumerate(names) if name not in seen), len(names)) * BLOCK
        seconds += cost.prefill_seconds(turn.num_prompt_tokens - num_hit, num_hit)
        seconds += cost.decode_seconds(turn.num_output_tokens)
        seen.update(names)
    return num_workers * len(turns) / seconds


@lru_cache(maxsize=4)
def at_load(path: Path, num_requests: int, load: float) -> list[Turn]:
    """The trace's first requests, so fast that they make this load on eight workers."""
    turns = list(read_mooncake(path))[:num_requests]
    recorded = len(turns) / turns[-1].arrival_time
    return list(faster(load * capacity(turns, num_workers=8) / recorded, turns))


@lru_cache(maxsize=2)
def generated(name: str, rate: float, num_requests: int) -> list[Turn]:
    """A workload by name."""
    return list(named_workload(name, rate=rate, num_requests=num_requests, seed=1))


def _trace(trace: str, path: Path, *, quick: bool) -> Table:
    num_requests, loads = (300, (0.6,)) if quick else (3000, LOADS)
    policies = ("round-robin", "slo") if quick else POLICIES
    cases = [
        Case(
            name=policy,
            fleet=fleet(policy, block_size=BLOCK),
            turns=Make(at_load, path, num_requests, load),
            objective=OBJECTIVE,
        )
        for load in loads
        for policy in policies
    ]
    found = run_all(cases, processes=1 if quick else None)
    labels = [f"{load:.0%}" for load in loads for _ in policies]
    rows = [_row(label, result) for label, result in zip(labels, found, strict=True)]
    title = f"Mooncake's {trace} trace, first {num_requests:,} requests"
    return Table(title=title, columns=COLUMNS, rows=rows)


def _generated(*, quick: bool) -> Table:
    num_requests = 100 if quick else 1000
    chosen = {"demo": (20.0,)} if quick else GENERATED
    policies = ("round-robin", "slo") if quick else POLICIES[3:]
    cases = [
        Case(
            name=policy,
            fleet=fleet(policy, block_size=64),
            turns=Make(generated, name, rate, num_requests),
            objective=OBJECTIVE,
        )
        for name, rates in chosen.items()
        for rate in rates
        for policy in policies
    ]
    labels = [f"{n} {rate:g}/s" for n, rates in chosen.items() for rate in rates for _ in policies]
    found = run_all(cases, processes=1 if quick else None)
    rows = [_row(label, result) for label, result in zip(labels, found, strict=True)]
    return Table(title="Generated workloads", columns=COLUMNS, rows=rows)


def _row(label: str, found: RunReport) -> Row:
    every = overall(found)
    assert every.ttft is not None
    assert every.tpot is not None
    assert every.attainment is not None
    return (
        label,
        found.policy,
        ms(every.ttft.p50.value),
        ms(every.ttft.mean.value),
        ms(every.ttft.p99.value),
        ms(every.tpot.p50.value),
        ms(every.tpot.p99.value),
        round(100 * every.attainment.value, 1),
        round(every.goodput_per_worker / GPUS, 4),
        round(100 * every.token_hit_rate, 1),
    )
