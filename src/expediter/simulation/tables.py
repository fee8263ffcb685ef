"""A report for people and for spreadsheets."""

import csv
import io
from collections.abc import Callable

import msgspec
from rich.table import Table

from expediter.simulation.report import ALL, ClassReport, Report, RunReport
from expediter.simulation.statistics import Distribution, Estimate

Column = tuple[str, Callable[[ClassReport], str]]


def tables(report: Report) -> list[Table]:
    """Latencies by policy and class, then what each policy made of the workers."""
    return [_latencies(report), _stages(report), _workers(report)]


def to_csv(report: Report) -> str:
    """One row a policy and class; a distribution is a column for each of its parts."""
    rows = [
        _flat(msgspec.to_builtins(c)) | {"imbalance": run.imbalance, "fairness": run.fairness}
        for run in report.runs
        for c in run.classes
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _latencies(report: Report) -> Table:
    columns: list[Column] = [
        ("requests", lambda c: f"{c.num_requests:,}"),
        ("failed", lambda c: f"{c.num_failed:,}"),
        ("TTFT ms p50", lambda c: _ms(c.ttft, "p50")),
        ("p99", lambda c: _ms(c.ttft, "p99")),
        ("TPOT ms p50", lambda c: _ms(c.tpot, "p50")),
        ("p99", lambda c: _ms(c.tpot, "p99")),
        ("E2E s p50", lambda c: _seconds(c.e2e, "p50")),
        ("p99", lambda c: _seconds(c.e2e, "p99")),
        ("in SLO", lambda c: _percent(c.attainment.value) if c.attainment else "-"),
        ("goodput/s", lambda c: f"{c.goodput:.2f}"),
        ("hit rate", lambda c: _percent(c.token_hit_rate)),
    ]
    return _by_class(report, columns, title="Requests")


def _stages(report: Report) -> Table:
    columns: list[Column] = [
        (f"{name} ms {part}", _stage(name, part))
        for name in ("queueing", "prefill", "decode")
        for part in ("p50", "p99")
    ]
    return _by_class(report, columns, title="Where the time goes")


def _stage(name: str, part: str) -> Callable[[ClassReport], str]:
    return lambda c: _ms(getattr(c, name), part)


def _workers(report: Report) -> Table:
    table = Table(title="Workers")
    for name in ("policy", "busy", "prompt tokens computed", "imbalance", "evicted", "preempted"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for run in report.runs:
        table.add_row(
            run.policy,
            _percent(sum(w.utilisation for w in run.workers) / len(run.workers)),
            f"{sum(w.num_prompt_tokens for w in run.workers):,}",
            f"{run.imbalance:.2f}",
            f"{sum(w.num_evicted_blocks for w in run.workers):,}",
            f"{sum(w.num_preemptions for w in run.workers):,}",
        )
    return table


def _by_class(report: Report, columns: list[Column], *, title: str) -> Table:
    table = Table(title=title)
    for name in ("policy", "class"):
        table.add_column(name, no_wrap=True)
    for name, _ in columns:
        table.add_column(name, justify="right")
    for run in report.runs:
        for c in _shown(run):
            table.add_row(c.policy, c.label, *(cell(c) for _, cell in columns))
    return table


def _shown(run: RunReport) -> list[ClassReport]:
    """Every class; the sum of all first, unless it is the only one of its kind."""
    return run.classes if len(run.classes) != 2 else [c for c in run.classes if c.label != ALL]


def _estimate(distribution: Distribution | None, part: str) -> Estimate | None:
    return getattr(distribution, part) if distribution is not None else None


def _ms(distribution: Distribution | None, part: str) -> str:
    estimate = _estimate(distribution, part)
    if estimate is None:
        return "-"
    if estimate.plus_minus is None:
        return f"{estimate.value * 1e3:,.1f}"
    return f"{estimate.value * 1e3:,.1f} ±{estimate.plus_minus * 1e3:,.1f}"


def _seconds(distribution: Distribution | None, part: str) -> str:
    estimate = _estimate(distribution, part)
    return "-" if estimate is None else f"{estimate.value:,.2f}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _flat(value: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, part in value.items():
        if isinstance(part, dict):
            flat |= _flat(part, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = part
    return flat
