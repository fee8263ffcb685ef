"""An experiment over a grid of settings: every combination is a cell, and every cell a row.

Each setting that varies is an axis, named by its path as in a file ("routing.load-weight"). The
policies are the last axis, so a cell is one run. A cell's row depends on its settings alone: not
on the other cells, nor on who computes it or when.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from expediter.errors import ConfigError
from expediter.results.rows import Row, flat
from expediter.simulation.report import Report, RunReport
from expediter.simulation.runners import Runner, in_turn
from expediter.simulation.settings import ExperimentConfig
from expediter.simulation.study import BuildPolicy, Study
from expediter.simulation.sweep_file import SweepFile

POLICY = "policy"

Axes = Mapping[str, Sequence[Any]]
Values = dict[str, Any]


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of one cell; `cell` has a value for each axis."""

    cell: Values
    run: RunReport

    def row(self) -> Row:
        """The cell and its figures: those of all requests, then those of each class."""
        everything, *classes = self.run.classes
        found: Row = {f"cell.{name}": _scalar(value) for name, value in self.cell.items()}
        found |= flat(everything)
        run = msgspec.structs.asdict(self.run)
        names = ("seconds", "num_gpus", "imbalance", "fairness", "max_slowdown")
        found |= {name: run[name] for name in names} | flat(self.run.waste, prefix="waste.")
        for each in classes if len(classes) > 1 else ():
            found |= flat(each, prefix=f"class.{each.label}.")
        return found


class Sweep:
    """A base experiment and what varies in it."""

    def __init__(self, base: ExperimentConfig, vary: Axes, *, build_policy: BuildPolicy) -> None:
        """Raises ConfigError for an axis or a value that is no setting."""
        axes = {name: list(values) for name, values in vary.items()}
        policies = axes.pop(POLICY, None) or list(dict.fromkeys(base.policy))
        self.axes: dict[str, list[Any]] = axes | {POLICY: policies}
        for name, values in self.axes.items():
            if not values:
                raise ConfigError(f"vary: {name} has no values")
        self._build_policy = build_policy
        self._base = _tree(base)
        given = [dict(zip(self.axes, each, strict=True)) for each in product(*self.axes.values())]
        self._configs = [self._config(cell) for cell in given]
        self.cells = [self._as_set(config) for config in self._configs]

    def run(
        self,
        *,
        file: Path | None = None,
        runner: Runner = in_turn,
        on_cell: Callable[[CellResult], None] | None = None,
    ) -> list[CellResult]:
        """All cells in the order of the grid; `file` keeps them, and those it has are not run.

        Raises ConfigError if the file holds another experiment's cells.
        """
        kept = SweepFile(file, base=self._fixed, kind=CellResult) if file is not None else None
        found = {key(result.cell): result for result in kept.read()} if kept is not None else {}
        for result in found.values():
            _tell(on_cell, result)
        for result in self._missing(found, runner):
            found[key(result.cell)] = result
            if kept is not None:
                kept.append(result)
            _tell(on_cell, result)
        wanted = [found.pop(key(cell)) for cell in self.cells]
        if kept is not None:
            kept.rewrite([*wanted, *found.values()])
        return wanted

    @property
    def _fixed(self) -> Values:
        """The settings that no axis varies, by path."""
        return {name: value for name, value in _paths(self._base).items() if name not in self.axes}

    def _missing(self, found: Mapping[str, CellResult], runner: Runner) -> Iterator[CellResult]:
        missing = [n for n, cell in enumerate(self.cells) if key(cell) not in found]
        work = partial(run_cell, build_policy=self._build_policy)
        for place, run in runner(work, [self._configs[n] for n in missing]):
            yield CellResult(cell=self.cells[missing[place]], run=run)

    def _config(self, cell: Values) -> ExperimentConfig:
        tree = msgspec.json.decode(msgspec.json.encode(self._base))
        for name, value in cell.items():
            _put(tree, name, [value] if name == POLICY else value)
        try:
            return msgspec.convert(tree, ExperimentConfig)
        except msgspec.ValidationError as error:
            raise ConfigError(f"vary: {_spelled(cell)}: {error}") from None

    def _as_set(self, config: ExperimentConfig) -> Values:
        """The axes' values as the settings have them: a rate of 10 is one of 10.0."""
        settings = _tree(config)
        return {name: _get(settings, name) for name in self.axes} | {POLICY: config.policy[0]}


def run_cell(config: ExperimentConfig, *, build_policy: BuildPolicy) -> RunReport:
    """One cell from nothing, wherever this runs."""
    found: Report = Study(config, build_policy=build_policy).run()
    return found.runs[0]


def key(cell: object) -> str:
    """A cell as text, the same whatever the order of its axes."""
    return msgspec.json.encode(cell, order="sorted").decode()


def _tell(on_cell: Callable[[CellResult], None] | None, result: CellResult) -> None:
    if on_cell is not None:
        on_cell(result)


def _tree(base: ExperimentConfig) -> Values:
    """All settings as plain values, but for the files, which are the sweep's."""
    tree: Values = msgspec.to_builtins(replace(base, json=None, csv=None, parquet=None, html=None))
    return tree


def _paths(tree: Values, prefix: str = "") -> Values:
    found: Values = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= _paths(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _put(tree: Values, path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        tree = tree.get(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"vary: {path}: {section} has no keys")
    if last not in tree:
        names = ", ".join(tree) or "none"
        raise ConfigError(f"vary: {path}: there is no such setting; beside it there are {names}")
    tree[last] = value


def _get(tree: Values, path: str) -> Any:
    found: Any = tree
    for name in path.split("."):
        found = found[name]
    return found


def _spelled(cell: Values) -> str:
    return ", ".join(f"{name}={value}" for name, value in cell.items())


def _scalar(value: Any) -> Any:
    """A list or a table as text, so that a column has one kind of value."""
    return key(value) if isinstance(value, dict | list) else value
