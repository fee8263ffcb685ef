"""What `expediter sweep` does with a grid: runs the cells, shows them, and keeps them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from expediter.results.figures import require_plots
from expediter.results.files import require_folders, save
from expediter.results.progress import progress
from expediter.results.rows import require_parquet, to_csv, write_parquet
from expediter.simulation.command import TABLE_WIDTH
from expediter.simulation.runners import Runner
from expediter.simulation.settings import ExperimentConfig
from expediter.simulation.study import BuildPolicy
from expediter.simulation.sweep import CellResult, Sweep
from expediter.simulation.sweep_page import sweep_page, sweep_table


class SweepOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as it was asked for; `out` is where its rows are kept. Other files are `base`'s."""

    base: ExperimentConfig
    vary: Mapping[str, list[Any]]
    out: str | None
    runner: Runner


def run(order: SweepOrder, *, build_policy: BuildPolicy) -> None:
    """A table to standard output, files where asked for, progress to a terminal."""
    base = order.base
    require_folders([order.out, base.csv, base.parquet, base.html])
    if base.parquet:
        require_parquet()
    if base.html:
        require_plots()
    sweep = Sweep(base, order.vary, build_policy=build_policy)
    results = _run(sweep, order)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(sweep_table(results))
    _write(results, base)


def _run(sweep: Sweep, order: SweepOrder) -> list[CellResult]:
    file = Path(order.out).expanduser() if order.out else None
    with progress("cells done", total=len(sweep.cells)) as advance:

        def on_cell(result: CellResult) -> None:
            del result
            if advance is not None:
                advance()

        return sweep.run(file=file, runner=order.runner, on_cell=on_cell)


def _write(results: list[CellResult], base: ExperimentConfig) -> None:
    rows = [result.row() for result in results]
    if base.csv:
        save(base.csv, to_csv(rows))
    if base.parquet:
        write_parquet(Path(base.parquet).expanduser(), rows)
    if base.html:
        save(base.html, sweep_page(results, title=f"Sweep: {len(results)} cells"))
