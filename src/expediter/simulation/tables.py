"""A report for people and for spreadsheets."""

from collections.abc import Callable

from rich.table import Table

from expediter.results.cells import MISSING, empty, ms, percent, seconds
from expediter.results.objective import ALL
from expediter.results.rows import Row, flat
from expediter.results.rows import to_csv as rows_to_csv
from expediter.simulation.report import ClassReport, Report, RunReport

Column = tuple[str, Callable[[ClassReport], str]]


def tables(report: Report) -> list[Table]:
    """Latencies by policy and class, then what each policy made of the workers."""
    found = [_latencies(report), _stages(report), _workers(report), _waste(report)]
    return [*found, _errors(report)] if any(_failures(report)) else found


def to_rows(report: Report) -> list[Row]:
    """One row a policy and class; a distribution is a column for each of its parts."""
    return [
        flat(each)
        | {
            "seconds": run.seconds,
            "imbalance": run.imbalance,
            "fairness": run.fairness,
            "max_slowdown": run.max_slowdown,
        }
        | flat(run.waste, prefix="waste.")
        for run in report.runs
        for each in run.classes
    ]


def to_csv(report: Report) -> str:
    """The same as text."""
    return rows_to_csv(to_rows(report))


def _latencies(report: Report) -> Table:
    columns: list[Column] = [
        ("requests", lambda c: f"{c.num_requests:,}"),
        ("failed", lambda c: f"{c.num_failed:,}"),
        ("TTFT ms p50", lambda c: ms(c.ttft, "p50")),
        ("p99", lambda c: ms(c.ttft, "p99")),
        ("TPOT ms p50", lambda c: ms(c.tpot, "p50")),
        ("p99", lambda c: ms(c.tpot, "p99")),
        ("E2E s p50", lambda c: seconds(c.e2e, "p50")),
        ("p99", lambda c: seconds(c.e2e, "p99")),
        ("in SLO", lambda c: percent(c.attainment.value if c.attainment else None)),
        ("goodput/s", lambda c: f"{c.goodput:.2f}"),
        ("a GPU", lambda c: f"{c.goodput_per_gpu:.3f}"),
        ("hit rate", lambda c: percent(c.token_hit_rate)),
    ]
    return _by_class(report, columns, title="Requests")


def _stages(report: Report) -> Table:
    names = ["queueing", "prefill", "decode"]
    if any(c.transfer is not None and c.transfer.p99.value > 0 for c in _classes(report)):
        names.insert(2, "transfer")
    columns: list[Column] = [
        (f"{name} ms {part}", _stage(name, part)) for name in names for part in ("p50", "p99")
    ]
    columns.append(("slowdown p50", lambda c: f"{c.slowdown.p50.value:.2f}" if c.slowdown else "-"))
    columns.append(("p99", lambda c: f"{c.slowdown.p99.value:.2f}" if c.slowdown else MISSING))
    return _by_class(report, columns, title="Where the time goes")


def _stage(name: str, part: str) -> Callable[[ClassReport], str]:
    return lambda c: ms(getattr(c, name), part)


def _workers(report: Report) -> Table:
    figures = ("busy", "prompt tokens computed", "imbalance", "fairness", "evicted", "preempted")
    table = empty("Workers", words=("policy",), figures=figures)
    for run in report.runs:
        table.add_row(
            run.policy,
            percent(sum(w.utilisation for w in run.workers) / len(run.workers)),
            f"{sum(w.num_prompt_tokens for w in run.workers):,}",
            f"{run.imbalance:.2f}",
            f"{run.fairness:.3f}",
            f"{sum(w.num_evicted_blocks for w in run.workers):,}",
            f"{sum(w.num_preemptions for w in run.workers):,}",
        )
    return table


def _waste(report: Report) -> Table:
    figures = (
        "computed again after eviction",
        "seconds",
        "lost prompt tokens",
        "lost output tokens",
        "MB transferred",
    )
    table = empty("Computed again or for nothing", words=("policy",), figures=figures)
    for run in report.runs:
        lost = run.waste
        table.add_row(
            run.policy,
            f"{lost.recomputed_tokens:,}",
            f"{lost.recomputation_seconds:,.1f}",
            f"{lost.lost_prompt_tokens:,}",
            f"{lost.lost_output_tokens:,}",
            f"{lost.transferred_bytes / 1e6:,.0f}",
        )
    return table


def _errors(report: Report) -> Table:
    table = empty("Failures", words=("policy", "class", "error"), figures=("requests",))
    for policy, label, error, number in _failures(report):
        table.add_row(policy, label, error, f"{number:,}")
    return table


def _failures(report: Report) -> list[tuple[str, str, str, int]]:
    return [
        (run.policy, c.label, error, number)
        for run in report.runs
        for c in shown(run)
        for error, number in c.errors.items()
    ]


def _by_class(report: Report, columns: list[Column], *, title: str) -> Table:
    table = empty(title, words=("policy", "class"), figures=tuple(name for name, _ in columns))
    for run in report.runs:
        for c in shown(run):
            table.add_row(c.policy, c.label, *(cell(c) for _, cell in columns))
    return table


def shown(run: RunReport) -> list[ClassReport]:
    """Every class; the sum of all first, unless it is the only one of its kind."""
    return run.classes if len(run.classes) != 2 else [c for c in run.classes if c.label != ALL]


def _classes(report: Report) -> list[ClassReport]:
    return [each for run in report.runs for each in run.classes]
