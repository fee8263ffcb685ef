"""What `expediter calibrate` does: measures a worker, or reads a benchmark, and fits a cost."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from expediter.bench.calibration import Calibration
from expediter.bench.calibration_plan import CalibrationPlan
from expediter.bench.command import TABLE_WIDTH, RunLoop
from expediter.bench.endpoint import base_url, open_endpoint, require_aiohttp
from expediter.bench.fit import Fit, fit
from expediter.bench.recorded import fit_rows, read_rows
from expediter.bench.texts import words_per_token
from expediter.results.cells import empty, percent
from expediter.results.files import require_folders
from expediter.results.progress import progress
from expediter.workload.prose import Prose

NUM_ROUND_TRIPS = 15

Keep = Callable[[Fit, str], None]
"""Writes a fit and what it is of."""


def run(plan: CalibrationPlan, *, out: str, run_loop: RunLoop[Fit], keep: Keep) -> None:
    """Measure the live worker and keep the fit; ConfigError or EndpointError if it cannot be."""
    require_aiohttp()
    require_folders([out])
    _finish(
        run_loop(measure(plan)), source=f"expediter calibrate of {base_url(plan.url)}", keep=keep
    )


def run_recorded(path: Path, *, out: str, keep: Keep) -> None:
    """The same from a file that `bench` wrote."""
    require_folders([out])
    _finish(fit_rows(read_rows(path)), source=f"expediter calibrate of {path.name}", keep=keep)


async def measure(plan: CalibrationPlan) -> Fit:
    """Every shape of the plan against the live worker."""
    async with open_endpoint(plan) as endpoint:
        model = await endpoint.model()
        words = await words_per_token(endpoint, model, api="completions")
        trips = sorted([await endpoint.round_trip() for _ in range(NUM_ROUND_TRIPS)])
        calibration = Calibration(
            endpoint,
            model=model,
            prose=Prose(lambda text: max(1, round(len(text.split()) / words))),
            plan=plan,
            nonce=f"{time.time_ns()}",
            overhead=trips[len(trips) // 2],
        )
        with progress("shapes measured", total=sum(map(len, calibration.shapes))) as on_shape:
            prefill, decode = await calibration.run(on_shape)
    return fit(prefill, decode)


def _finish(found: Fit, *, source: str, keep: Keep) -> None:
    keep(found, source)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(fit_table(found))


def fit_table(found: Fit) -> Table:
    """Coefficients and errors."""
    names = ("a", "b", "c", "points", "error")
    table = empty("Cost, ms", words=("steps",), figures=names)
    parts = (
        ("prefill", found.prefill, found.prefill_points),
        (
            "decode",
            found.decode,
            found.decode_points,
        ),
    )
    for name, line, points in parts:
        cells = (f"{coefficient:.4g}" for coefficient in line.coefficients)
        table.add_row(name, *cells, f"{len(points)}", percent(line.error))
    return table
