"""Runs simulations side by side, prints tables, and keeps what came out.

An experiment is a list of `Case`s and what it makes of their results. `python -m experiments` runs
all of them; each writes `results/NAME.json` and its part of docs/results.md.
"""

import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from expediter.assemble.policies import build_policy
from expediter.config import KVCacheConfig, RoutingConfig, SchedulerConfig, environment
from expediter.config.routing import PrebleConfig, StickyConfig
from expediter.routing.policy import RoutingPolicy
from expediter.simulation.catalog import named_cost
from expediter.simulation.costs import CostModel
from expediter.simulation.experiment import MakePolicy, simulate
from expediter.simulation.fleet import FleetModel
from expediter.simulation.report import ClassReport, Objective, RunReport, report
from expediter.simulation.worker import WorkerModel
from expediter.workload.turn import Turn

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "results.md"
GRID = "llama3-70b_h100_sxm_sglang_tp8"
FIT = "llama3-70b-8xh100-sglang"
GPUS = 8  # of one worker with `GRID`

Row = Sequence[str | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What is printed and put on the page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]

    def markdown(self) -> str:
        """A title and a table."""
        lines = [f"**{self.title}**", "", _line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join([*lines, *(_line([_text(cell) for cell in row]) for row in self.rows)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One policy on one workload. `turns` makes the workload where it is needed.

    The policy is the one that the fleet's settings name, unless `make_policy` makes another.
    """

    name: str
    fleet: FleetModel
    turns: Callable[[], Sequence[Turn]]
    objective: Objective = field(default_factory=Objective)
    warmup: float = 0.2
    make_policy: MakePolicy | None = None

    def run(self) -> RunReport:
        """Simulate."""
        run = simulate(self.fleet, self.turns(), policy=self._policy, name=self.name)
        found = report([run], objectives={"all": self.objective}, warmup=self.warmup)
        return found.runs[0]

    def _policy(self, rng: random.Random) -> RoutingPolicy:
        if self.make_policy is not None:
            return self.make_policy(rng)
        return build_policy(self.fleet.routing, clock=asyncio.get_running_loop().time, rng=rng)


def run_all(cases: Sequence[Case], *, processes: int | None = None) -> list[RunReport]:
    """In order; one process where that is asked for, else one for each core."""
    number = processes or os.cpu_count() or 1
    if number == 1:
        return list(_counted((case.run() for case in cases), total=len(cases)))
    with ProcessPoolExecutor(number) as pool:
        return list(_counted(pool.map(Case.run, cases), total=len(cases)))


def fleet(
    policy: str,
    *,
    block_size: int,
    cost: CostModel | None = None,
    worker: Mapping[str, int] | None = None,
    scheduler: SchedulerConfig | None = None,
    routing: RoutingConfig | None = None,
) -> FleetModel:
    """Eight 70B workers of 8 H100 each unless `worker` and `cost` say otherwise.

    `worker` may have `num` and `kv_tokens`. Settings of policies fit the block size.
    """
    sizes = {"num": 8, "kv_tokens": 1_300_000, **(worker or {})}
    kv_tokens = sizes["kv_tokens"]
    base = routing or RoutingConfig(preble=PrebleConfig(gpu_cost=FIT, capacity_tokens=kv_tokens))
    return FleetModel(
        num_workers=sizes["num"],
        worker=WorkerModel(
            cost=cost or named_cost(GRID),
            kv_tokens=kv_tokens,
            kv_cache=KVCacheConfig(block_size=block_size),
            scheduler=scheduler or SchedulerConfig(max_batched_tokens=8192, max_running=256),
        ),
        routing=replace(
            base,
            policy=policy,
            block_size=block_size,
            sticky=StickyConfig(num_blocks=max(1, 2560 // block_size)),
        ),
    )


def overall(found: RunReport) -> ClassReport:
    """All classes together."""
    return found.classes[0]


def ms(seconds: float) -> float:
    """Milliseconds, whole from ten on."""
    return round(seconds * 1e3, 1 if seconds < 0.01 else None)


def traces() -> Path | None:
    """The folder of recorded traces, if there is one."""
    folder = environment().get("EXPEDITER_TRACES")
    return Path(folder) if folder and Path(folder).is_dir() else None


def keep(name: str, tables: Sequence[Table], *, comment: str = "") -> None:
    """Write an experiment's results: JSON, and its part of the page."""
    RESULTS.mkdir(exist_ok=True)
    encoded = msgspec.json.encode([msgspec.to_builtins(_plain(table)) for table in tables])
    (RESULTS / f"{name}.json").write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    parts = [table.markdown() for table in tables] + ([comment] if comment else [])
    _replace_part(name, "\n\n".join(parts))


def show(tables: Iterable[Table]) -> None:
    """Tables to standard output."""
    for table in tables:
        print(f"\n{table.markdown()}", flush=True)


def _counted(results: Iterable[RunReport], *, total: int) -> Iterable[RunReport]:
    for number, result in enumerate(results, 1):
        print(f"\r{number}/{total} runs", end="" if number < total else "\n", file=sys.stderr)
        yield result


def _replace_part(name: str, text: str) -> None:
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    page = PAGE.read_text("utf-8")
    before, found, rest = page.partition(begin)
    assert found, f"docs/results.md has no {begin}"
    _, found, after = rest.partition(end)
    assert found, f"docs/results.md has no {end}"
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", "utf-8")


def _plain(table: Table) -> dict[str, object]:
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {"title": table.title, "rows": rows}


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(cell: str | float) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if abs(cell) >= 100 or cell == int(cell) else f"{cell:.3g}"


Make = partial
"""A workload as a function without arguments that another process can be given."""
