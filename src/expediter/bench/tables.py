"""A benchmark for people and for spreadsheets."""

from rich.table import Table

from expediter.bench.report import BenchClass, BenchReport
from expediter.results import figures
from expediter.results.cells import MISSING, empty, ms, percent, seconds
from expediter.results.figures import Points
from expediter.results.objective import ALL
from expediter.results.page import Page
from expediter.results.rows import Row, flat

LATE_SECONDS = 0.05
"""A send lag at p99 above which the generator says that it was late."""


def tables(report: BenchReport) -> list[Table]:
    """Latencies by class, then the run as a whole, workers and failures if there are any."""
    found = [_latencies(report), _run(report)]
    if report.workers:
        found.append(_workers(report))
    if report.classes[0].num_failed:
        found.append(_errors(report))
    return found


def warning(report: BenchReport) -> str | None:
    """What one has to know before believing the rest."""
    if report.lag is None or report.lag.p99.value <= LATE_SECONDS:
        return None
    return (
        f"requests left late, by {report.lag.p99.value:.2f} s at p99: the load was less even than "
        "asked for, because of --max-concurrency or because this machine is too slow"
    )


def to_rows(report: BenchReport) -> list[Row]:
    """One row a class; a distribution is a column for each of its parts."""
    whole = {"model": report.model, "seconds": report.seconds, "max_lag": report.max_lag}
    return [flat(each) | whole | flat({"lag": report.lag}) for each in report.classes]


def html_page(report: BenchReport, *, title: str) -> str:
    """One HTML file with curves; ConfigError without matplotlib."""
    page = Page(title)
    page.figure(_curves(report), "Share of the answers that came at least so fast.")
    for table in tables(report):
        page.table(table)
    return page.html()


def _curves(report: BenchReport) -> str:
    panels: dict[str, dict[str, Points]] = {"TTFT": {}, "end to end": {}}
    for label in sorted({row.label for row in report.requests}):
        rows = [row for row in report.requests if row.label == label and row.error is None]
        first = [row.first_at - row.sent_at for row in rows if row.first_at is not None]
        last = [row.last_at - row.sent_at for row in rows if row.last_at is not None]
        panels["TTFT"][label] = _cdf(first)
        panels["end to end"][label] = _cdf(last)
    return figures.lines(panels, x="ms", y="% of answers", is_log=True)


def _cdf(values: list[float]) -> Points:
    ordered = sorted(value * 1e3 for value in values)
    return ordered, [100 * (n + 1) / len(ordered) for n in range(len(ordered))]


def _latencies(report: BenchReport) -> Table:
    names = (
        "requests",
        "failed",
        "TTFT ms p50",
        "p99",
        "TPOT ms p50",
        "p99",
        "ITL ms p50",
        "p99",
        "E2E s p50",
        "p99",
        "in SLO",
        "goodput/s",
        "hit rate",
    )
    table = empty("Requests", words=("class",), figures=names)
    for c in _shown(report):
        latencies = [ms(d, part) for d in (c.ttft, c.tpot, c.itl) for part in ("p50", "p99")]
        table.add_row(
            c.label,
            f"{c.num_requests:,}",
            f"{c.num_failed:,}",
            *latencies,
            seconds(c.e2e, "p50"),
            seconds(c.e2e, "p99"),
            percent(c.attainment.value if c.attainment else None),
            f"{c.goodput:.2f}",
            percent(c.token_hit_rate),
        )
    return table


def _run(report: BenchReport) -> Table:
    names = (
        "seconds",
        "answers/s",
        "output tokens/s",
        "prompt tokens",
        "cached",
        "output tokens",
        "most open",
        "send lag ms p50",
        "p99",
        "max",
    )
    table = empty("Run", words=("model",), figures=names)
    everything = report.classes[0]
    cached = everything.cached_tokens
    table.add_row(
        report.model,
        f"{report.seconds:,.1f}",
        f"{report.request_rate:.2f}",
        f"{report.output_token_rate:,.0f}",
        f"{everything.prompt_tokens:,}",
        MISSING if cached is None else f"{cached:,}",
        f"{everything.output_tokens:,}",
        f"{report.most_open:,}",
        ms(report.lag, "p50"),
        ms(report.lag, "p99"),
        f"{report.max_lag * 1e3:,.1f}",
    )
    return table


def _workers(report: BenchReport) -> Table:
    names = ("requests", "prompt tokens", "cached")
    table = empty("Workers", words=("worker",), figures=names)
    for worker in report.workers:
        table.add_row(
            worker.worker,
            f"{worker.num_requests:,}",
            f"{worker.prompt_tokens:,}",
            f"{worker.cached_tokens:,}",
        )
    return table


def _errors(report: BenchReport) -> Table:
    table = empty("Failures", words=("class", "error"), figures=("requests",))
    for each in _shown(report):
        for error, number in each.errors.items():
            table.add_row(each.label, error, f"{number:,}")
    return table


def _shown(report: BenchReport) -> list[BenchClass]:
    if len(report.classes) != 2:
        return report.classes
    return [each for each in report.classes if each.label != ALL]
