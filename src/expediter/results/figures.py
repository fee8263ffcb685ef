"""Plots as SVG, to stand within a page: made by matplotlib, readable on light and on dark.

Text and axes are drawn in colours that stand for the page's own, and are replaced by them. Equal
data give equal bytes.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from expediter.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = tuple[Sequence[float], Sequence[float]]
"""The x and the y of a line."""

Strip = tuple[float, Sequence[Sequence[float]]]
"""When it ends, and rows of values at equal distances until then."""

COLOURS = (
    "#3f83f8",
    "#f08c2e",
    "#22a06b",
    "#e5484d",
    "#a56eff",
    "#0ea5b7",
    "#c9a400",
    "#e255a1",
    "#8d8d8d",
)
STYLES = ("-", "--", ":")
MAP = "viridis"
_INK, _GRID = "#0a0b0c", "#0d0e0f"
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "expediter",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_WIDTH, _HEIGHT = 4.4, 3.0  # inches of one panel


def require_plots() -> None:
    """ConfigError if nothing can be drawn here."""
    _matplotlib()


def lines(
    panels: Mapping[str, Mapping[str, Points]],
    *,
    x: str,
    y: str = "",
    is_log: bool = False,
    starts_at_zero: bool = True,
) -> str:
    """One panel a title, in it one line a name."""
    with _drawing(len(panels)) as (figure, axes):
        for place, (title, each) in enumerate(panels.items()):
            axis = axes[place]
            for number, (name, (xs, ys)) in enumerate(each.items()):
                style = STYLES[number // len(COLOURS) % len(STYLES)]
                axis.plot(xs, ys, label=name, linestyle=style, color=_colour(number))
            axis.set(title=title, xlabel=x, ylabel=y)
            if is_log:
                _log(axis)
            if starts_at_zero:
                axis.set_ylim(bottom=0)
        _legend(figure, axes[0])
        return _svg(figure)


def stacked(parts: Mapping[str, Sequence[float]], *, names: Sequence[str], x: str) -> str:
    """One bar a name, made of the same parts in each."""
    height = 0.9 + 0.32 * len(names)
    with _drawing(1, width=2 * _WIDTH, height=height) as (figure, axes):
        left = [0.0] * len(names)
        for number, (part, values) in enumerate(parts.items()):
            axes[0].barh(names, values, left=left, label=part, color=_colour(number))
            left = [before + value for before, value in zip(left, values, strict=True)]
        axes[0].set(xlabel=x)
        axes[0].invert_yaxis()
        axes[0].grid(visible=False, axis="y")
        _legend(figure, axes[0])
        return _svg(figure)


def strips(panels: Mapping[str, Strip], *, x: str, value: str) -> str:
    """One panel a title: a row of colours for each sequence, all over the same time."""
    height = 1.1 + min(3.0, 0.16 * max((len(rows) for _, rows in panels.values()), default=1))
    top = max((cell for _, rows in panels.values() for row in rows for cell in row), default=1.0)
    with _drawing(len(panels), height=height) as (figure, axes):
        mesh = None
        for place, (title, (end, values)) in enumerate(panels.items()):
            edges = [end * n / len(values[0]) for n in range(len(values[0]) + 1)]
            mesh = axes[place].pcolormesh(
                edges,
                list(range(len(values) + 1)),
                values,
                cmap=MAP,
                vmin=0,
                vmax=top or 1.0,
                rasterized=True,
            )
            axes[place].set(title=title, xlabel=x, ylabel="worker")
            axes[place].grid(visible=False)
        if mesh is not None:
            figure.colorbar(mesh, ax=axes[: len(panels)], label=value)
        return _svg(figure)


def heat(
    panels: Mapping[str, Sequence[Sequence[float | None]]],
    *,
    columns: tuple[str, Sequence[str]],
    rows: tuple[str, Sequence[str]],
    scale: float = 1.0,
) -> str:
    """One panel a title: a coloured and labelled cell for each row and column; None is empty."""
    known = [v * scale for each in panels.values() for row in each for v in row if v is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    width = max(_WIDTH, 1.2 + 0.62 * len(columns[1]))
    height = max(1.6, 1.0 + 0.34 * len(rows[1]))
    with _drawing(len(panels), width=width, height=height) as (figure, axes):
        for place, (title, values) in enumerate(panels.items()):
            axis = axes[place]
            filled = [[float("nan") if v is None else v * scale for v in row] for row in values]
            axis.pcolormesh(filled, cmap=MAP, vmin=low, vmax=high if high > low else low + 1)
            _label(axis, filled, middle=(low + high) / 2)
            axis.set(title=title, xlabel=columns[0], ylabel=rows[0])
            axis.set_xticks([n + 0.5 for n in range(len(columns[1]))], columns[1])
            axis.set_yticks([n + 0.5 for n in range(len(rows[1]))], rows[1])
            axis.grid(visible=False)
            axis.invert_yaxis()
        return _svg(figure)


def _label(axis: "Axes", values: Sequence[Sequence[float]], *, middle: float) -> None:
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value == value:
                colour = "#ffffff" if value < middle else "#000000"
                place = x + 0.5, y + 0.5
                axis.text(*place, short(value), ha="center", va="center", color=colour)


def _log(axis: "Axes") -> None:
    """Marked at 1, 2, 5, 10 and so on, in plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """About three digits, never with an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _legend(figure: "Figure", axis: "Axes") -> None:
    handles, names = axis.get_legend_handles_labels()
    if len(names) > 1:
        figure.legend(handles, names, loc="outside lower center", ncols=min(5, len(names)))


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


@contextmanager
def _drawing(
    num_panels: int, *, width: float = _WIDTH, height: float = _HEIGHT
) -> Iterator[tuple["Figure", Sequence["Axes"]]]:
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    num_columns = max(1, min(num_panels, max(1, round(3 * _WIDTH / width))))
    num_rows = max(1, -(-num_panels // num_columns))
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width * num_columns, height * num_rows), layout="constrained")
        axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flatten())
        for unused in axes[num_panels:]:
            unused.set_visible(False)
        yield figure, axes


def _svg(figure: "Figure") -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    return text.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "plots need matplotlib; install it with pip install 'expediter[plot]'"
        ) from None
    return matplotlib
