"""What `expediter simulate` does with an experiment: runs it, shows it, and keeps the result."""

from pathlib import Path

from rich.console import Console

from expediter.results.figures import require_plots
from expediter.results.files import require_folders, save
from expediter.results.progress import progress
from expediter.results.rows import require_parquet, write_parquet
from expediter.simulation.answer import Answer
from expediter.simulation.experiment import Run
from expediter.simulation.html import html_report
from expediter.simulation.report import Report
from expediter.simulation.settings import ExperimentConfig
from expediter.simulation.study import BuildPolicy, Study
from expediter.simulation.tables import tables, to_csv, to_rows

TABLE_WIDTH = 160
"""Columns where no terminal says how many there are."""


def run(config: ExperimentConfig, *, build_policy: BuildPolicy) -> None:
    """Tables to standard output, files where the settings say, progress to a terminal.

    Raises ConfigError or WorkloadError before anything is run, if it can be known then.
    """
    require_folders([config.json, config.csv, config.parquet, config.html])
    if config.parquet:
        require_parquet()
    if config.html:
        require_plots()
    study = Study(config, build_policy=build_policy)
    runs = _run(study)
    found = study.report(runs)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    for table in tables(found):
        console.print(table)
    _write(study, found)
    if config.html:
        save(config.html, html_report(found, runs, config))


def _run(study: Study) -> list[Run]:
    total = len(study.turns) * len(study.policies)
    with progress("requests answered", total=total) as advance:
        if advance is None:
            return study.runs()

        def on_answer(answer: Answer) -> None:
            del answer
            advance()

        return study.runs(on_answer=on_answer)


def _write(study: Study, found: Report) -> None:
    config = study.config
    if config.json:
        save(config.json, study.to_json(found) + b"\n")
    if config.csv:
        save(config.csv, to_csv(found))
    if config.parquet:
        write_parquet(Path(config.parquet).expanduser(), to_rows(found))
