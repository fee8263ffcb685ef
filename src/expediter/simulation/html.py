"""A report as one HTML file, with what only a picture shows."""

from collections.abc import Sequence

import msgspec

from expediter.results import figures
from expediter.results.objective import ALL
from expediter.results.page import Page
from expediter.simulation.curves import cdf, latencies, open_requests
from expediter.simulation.experiment import Run
from expediter.simulation.report import ClassReport, Report, by_label, counted
from expediter.simulation.settings import ExperimentConfig
from expediter.simulation.tables import tables

STAGES = ("queueing", "prefill", "transfer", "decode")
LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "end to end": "e2e"}


def html_report(
    report: Report, runs: Sequence[Run], config: ExperimentConfig, *, title: str | None = None
) -> str:
    """The page; `runs` are those that the report is of. Raises ConfigError without matplotlib."""
    what = config.trace or config.workload or "chat"
    page = Page(title or f"Simulation: {what} on {config.num_workers} workers")
    page.facts(_settings(config))
    page.heading("Latency")
    page.figure(_cdfs(runs, config.warmup), "Share of the requests that are at least so fast.")
    by_class = _by_class(runs, config.warmup)
    if by_class is not None:
        page.figure(by_class, "Time to first token by class.")
    page.figure(_stages(report), "Where the time goes, in the mean over all requests.")
    page.heading("Load of the workers")
    page.figure(_load(runs), "Requests open at each worker over time.")
    page.heading("Figures")
    for table in tables(report):
        page.table(table)
    return page.html()


def _settings(config: ExperimentConfig) -> list[tuple[str, object]]:
    """Those that are not as they are without saying."""
    usual = msgspec.to_builtins(ExperimentConfig())
    files = {"json", "csv", "parquet", "html"}
    return [
        (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else value)
        for name, value in msgspec.to_builtins(config).items()
        if name not in files and (value != usual[name] or name in ("cost", "workers", "policy"))
    ]


def _cdfs(runs: Sequence[Run], warmup: float) -> str:
    panels = {
        title: {run.policy: cdf(latencies(counted(run, warmup), name)) for run in runs}
        for title, name in LATENCIES.items()
    }
    return figures.lines(panels, x="ms", y="% of requests", is_log=True)


def _by_class(runs: Sequence[Run], warmup: float) -> str | None:
    panels: dict[str, dict[str, figures.Points]] = {}
    for run in runs:
        for label, answers in by_label(counted(run, warmup)).items():
            if label != ALL:
                panels.setdefault(label, {})[run.policy] = cdf(latencies(answers, "ttft"))
    if len(panels) < 2:
        return None
    return figures.lines(panels, x="ms", y="% of requests", is_log=True)


def _stages(report: Report) -> str:
    everything = [run.classes[0] for run in report.runs]
    return figures.stacked(
        {stage: [_mean(each, stage) for each in everything] for stage in STAGES},
        names=[run.policy for run in report.runs],
        x="seconds",
    )


def _mean(report: ClassReport, stage: str) -> float:
    found = getattr(report, stage)
    return float(found.mean.value) if found is not None else 0.0


def _load(runs: Sequence[Run]) -> str:
    return figures.strips(
        {run.policy: (run.seconds, open_requests(run)) for run in runs},
        x="seconds",
        value="open requests",
    )
