"""A sweep for people: a table of its cells, and a page with a map of each figure."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from expediter.results import figures
from expediter.results.cells import empty, estimate, ms, percent
from expediter.results.page import Page
from expediter.simulation.report import ClassReport
from expediter.simulation.sweep import POLICY, CellResult

Metric = Callable[[ClassReport], float | None]


def _part(name: str, part: str) -> Metric:
    def read(report: ClassReport) -> float | None:
        found = estimate(getattr(report, name), part)
        return None if found is None else found.value * 1e3

    return read


METRICS: Mapping[str, Metric] = {
    "TTFT p50, ms": _part("ttft", "p50"),
    "TTFT p99, ms": _part("ttft", "p99"),
    "TPOT p99, ms": _part("tpot", "p99"),
    "within the service level, %": lambda c: 100 * c.attainment.value if c.attainment else None,
    "goodput a GPU, requests/s": lambda c: c.goodput_per_gpu,
    "tokens found in the cache, %": lambda c: 100 * c.token_hit_rate,
}


def sweep_table(results: Sequence[CellResult]) -> Table:
    """A row a cell, over all classes."""
    names = tuple(results[0].cell) if results else ()
    figure_names = ("TTFT ms p50", "p99", "TPOT ms p99", "in SLO", "goodput/s", "hit rate")
    table = empty("Sweep", words=names, figures=figure_names)
    for result in results:
        everything = result.run.classes[0]
        attainment = everything.attainment
        table.add_row(
            *(_spelled(value) for value in result.cell.values()),
            ms(everything.ttft, "p50"),
            ms(everything.ttft, "p99"),
            ms(everything.tpot, "p99"),
            percent(attainment.value if attainment else None),
            f"{everything.goodput:.2f}",
            percent(everything.token_hit_rate),
        )
    return table


def sweep_page(results: Sequence[CellResult], *, title: str) -> str:
    """One HTML file: for each figure a panel a policy. Raises ConfigError without matplotlib.

    With one axis a panel has a line a policy; with two it is a map; a further axis is averaged
    over.
    """
    page = Page(title)
    axes = axes_of(results)
    for name, metric in METRICS.items():
        page.heading(name)
        page.figure(_figure(results, axes, metric), _caption(axes))
    page.heading("Cells")
    page.table(sweep_table(results))
    return page.html()


def axes_of(results: Sequence[CellResult]) -> dict[str, list[Any]]:
    """What varies besides the policy: those with most values first, each in order."""
    found: dict[str, list[Any]] = {}
    for result in results:
        for name, value in result.cell.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    found.pop(POLICY, None)
    varied = {name: values for name, values in found.items() if len(values) > 1}
    return dict(sorted(varied.items(), key=lambda item: -len(item[1])))


def _figure(results: Sequence[CellResult], axes: Mapping[str, list[Any]], metric: Metric) -> str:
    names = list(axes)
    if not names:
        values = {str(r.cell[POLICY]): metric(r.run.classes[0]) or 0.0 for r in results}
        return figures.stacked({"": list(values.values())}, names=list(values), x="")
    if len(names) == 1:
        return _lines(results, names[0], axes[names[0]], metric)
    x, y = names[:2]
    panels = {
        policy: [
            [_mean(results, {POLICY: policy, x: column, y: row}, metric) for column in axes[x]]
            for row in axes[y]
        ]
        for policy in policies_of(results)
    }
    columns, rows = [(name, [_spelled(v) for v in axes[name]]) for name in (x, y)]
    return figures.heat(panels, columns=columns, rows=rows)


def _lines(results: Sequence[CellResult], x: str, values: list[Any], metric: Metric) -> str:
    """Values that are no numbers stand at equal distances."""
    are_numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    places = [float(v) for v in values] if are_numbers else [float(n) for n in range(len(values))]
    each = {
        policy: _points(places, [_mean(results, {POLICY: policy, x: v}, metric) for v in values])
        for policy in policies_of(results)
    }
    label = x if are_numbers else f"{x}: {', '.join(_spelled(v) for v in values)}"
    return figures.lines({"": each}, x=label)


def _points(xs: Sequence[float], ys: Sequence[float | None]) -> figures.Points:
    known = sorted((x, y) for x, y in zip(xs, ys, strict=True) if y is not None)
    return [x for x, _ in known], [y for _, y in known]


def policies_of(results: Sequence[CellResult]) -> list[str]:
    """In the order in which they are met."""
    return list(dict.fromkeys(str(result.cell[POLICY]) for result in results))


def _mean(results: Sequence[CellResult], cell: Mapping[str, Any], metric: Metric) -> float | None:
    found = [
        metric(result.run.classes[0])
        for result in results
        if all(result.cell[name] == value for name, value in cell.items())
    ]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None


def _caption(axes: Mapping[str, list[Any]]) -> str:
    averaged = list(axes)[2:]
    return f"Averaged over {', '.join(averaged)}." if averaged else ""


def _spelled(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
