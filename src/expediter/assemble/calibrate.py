"""Cost models from live workers and from benchmarks."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expediter.assemble.bench import run_in_loop, with_key
from expediter.errors import ConfigError
from expediter.settings import load_section

if TYPE_CHECKING:
    from expediter.bench.fit import Fit


def run_calibration(
    file: Path | None, *, flags: Mapping[str, Any], from_bench: Path | None, out: str
) -> None:
    """Fit a cost model to a live worker, or to a benchmark's file, and write it to `out`."""
    # Only here, because a gateway has no use for numpy.
    from expediter.bench import calibrate_command
    from expediter.bench.calibration_plan import CalibrationPlan

    def keep(found: "Fit", source: str) -> None:
        _save(Path(out).expanduser(), found, source)

    if from_bench is not None:
        if file is not None or flags:
            raise ConfigError("--from-bench: nothing is measured, so it goes alone with --out")
        calibrate_command.run_recorded(from_bench, out=out, keep=keep)
        return
    plan = load_section(CalibrationPlan, file, flags=with_key(flags))
    calibrate_command.run(plan, out=out, run_loop=run_in_loop, keep=keep)


def _save(path: Path, found: "Fit", source: str) -> None:
    from expediter.simulation.measured import MeasuredFit, save_cost

    try:
        save_cost(
            path,
            MeasuredFit(
                prefill=found.prefill.coefficients,
                decode=found.decode.coefficients,
                source=source,
                error=found.error,
            ),
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
