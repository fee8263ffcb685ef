"""Sweeps from files and arguments."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expediter.assemble.policies import build_policy
from expediter.errors import ConfigError
from expediter.settings import parse_value, read_toml, section_from

VARY = "vary"


def run_sweep(
    path: Path,
    *,
    vary: Sequence[str],
    flags: Mapping[str, Any],
    out: str | None,
    jobs: int | None,
    on_ray: bool,
) -> None:
    """Simulate what a file describes with every combination of what its `vary` and `vary` list."""
    # Only here, because a gateway has no use for numpy.
    from expediter.simulation import runners, sweep_command
    from expediter.simulation.settings import ExperimentConfig

    if on_ray and jobs is not None:
        raise ConfigError("--ray and --jobs: there can be only one of them")
    tree = read_toml(path)
    axes = _axes_of(tree.pop(VARY, {}), source=f"{path}: vary") | dict(map(_axis, vary))
    if not axes:
        raise ConfigError(f"{path}: nothing varies; say --vary key=value,value or [vary]")
    order = sweep_command.SweepOrder(
        base=section_from(ExperimentConfig, tree | dict(flags), source=str(path)),
        vary=axes,
        out=out,
        runner=runners.on_ray if on_ray else runners.in_processes(jobs or os.cpu_count() or 1),
    )
    sweep_command.run(order, build_policy=build_policy)


def _axes_of(table: object, *, source: str) -> dict[str, list[Any]]:
    if not isinstance(table, dict):
        raise ConfigError(f"{source}: not a table of lists")
    axes: dict[str, list[Any]] = {}
    for name, values in table.items():
        if isinstance(values, dict):  # [vary.routing] is [vary] with routing. before each key
            axes |= {f"{name}.{k}": v for k, v in _axes_of(values, source=source).items()}
        elif isinstance(values, list):
            axes[name] = values
        else:
            raise ConfigError(f"{source}.{name}: not a list")
    return axes


def _axis(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise ConfigError(f"--vary {text}: write it as key=value,value")
    return name.strip(), [parse_value(value.strip()) for value in values.split(",")]
