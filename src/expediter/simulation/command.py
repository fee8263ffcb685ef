"""What `expediter simulate` does with an experiment: runs it, shows it, and keeps the result."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from expediter.errors import ConfigError
from expediter.simulation.answer import Answer
from expediter.simulation.report import Report
from expediter.simulation.settings import ExperimentConfig
from expediter.simulation.study import BuildPolicy, Study
from expediter.simulation.tables import tables, to_csv

TABLE_WIDTH = 160
"""Columns where no terminal says how many there are."""


def run(config: ExperimentConfig, *, build_policy: BuildPolicy) -> None:
    """Tables to standard output, files where the settings say, progress to a terminal.

    Raises ConfigError or WorkloadError before anything is run, if it can be known then.
    """
    outputs = [Path(name).expanduser() for name in (config.json, config.csv) if name]
    for path in outputs:
        _require_folder(path)
    study = Study(config, build_policy=build_policy)
    found = _run(study)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    for table in tables(found):
        console.print(table)
    _write(study, found)


def _run(study: Study) -> Report:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("requests answered", total=len(study.turns) * len(study.policies))

        def on_answer(answer: Answer) -> None:
            del answer
            progress.advance(task)

        return study.run(on_answer=None if progress.disable else on_answer)


def _write(study: Study, found: Report) -> None:
    config = study.config
    if config.json:
        _save(config.json, study.to_json(found) + b"\n")
    if config.csv:
        _save(config.csv, to_csv(found).encode())


def _save(name: str, content: bytes) -> None:
    try:
        Path(name).expanduser().write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None


def _require_folder(path: Path) -> None:
    """A run may take long: what cannot be written is better known before."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder")
