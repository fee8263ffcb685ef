"""Step times interpolated from a grid of predictions: the default calibration.

The grids are exports of NVIDIA's aiconfigurator-core 0.12.0 (Apache-2.0); see
data/aiconfigurator/ATTRIBUTION.md. One file is one model, GPU, engine and tensor-parallel degree.

Between grid points the time is linear in both directions: prefill over (n, p), decode over
(B, mean context). Beyond them:

- context: the last segment goes on, since attention is linear in the tokens it reads. The grids
  leave out batches whose KV would not fit; that is the same rule, each batch with its own.
- n below the smallest (64): a chunk of one token is a decode of one, so that is the first row.
- n or B above the largest: the last segment goes on. For n that misses some of the square, so
  chunks should stay below 32,768 tokens, as every engine's budget is.

Chunks of several prompts in one pass cost what one chunk of all their tokens costs, and each
its own attention to what came before it. Their tokens then also attend to each other, which
they do not: 1 % too much at 2,048 tokens, 5 % at 8,192.
"""

import csv
from bisect import bisect_right
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from expediter.errors import ConfigError
from expediter.scheduling.output import StepWork
from expediter.simulation.costs import MS, combined

FOLDER = "data/aiconfigurator"


class Line:
    """Points joined by straight lines; the first and the last of these go on."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self.xs = [x for x, _ in points]
        self._ys = [y for _, y in points]
        slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(points)]
        self._slopes = slopes or [0.0]
        self._inner = self.xs[1:-1]  # at which the line changes

    def at(self, x: float) -> float:
        """The y at this x."""
        index = bisect_right(self._inner, x)
        return self._ys[index] + self._slopes[index] * (x - self.xs[index])


class _Surface:
    """One line for each value of x; between two of them, linear."""

    def __init__(self, rows: dict[float, list[tuple[float, float]]]) -> None:
        self._xs = sorted(rows)
        self._inner = self._xs[1:-1]
        self._lines = [Line(sorted(rows[x])) for x in self._xs]

    def line(self, x: float) -> Line:
        """All values at this x."""
        ys = sorted({y for line in self._lines for y in line.xs})
        return Line([(y, self.at(x, y)) for y in ys])

    def at(self, x: float, y: float) -> float:
        xs, lines = self._xs, self._lines
        index = bisect_right(self._inner, x)
        low, high = lines[index].at(y), lines[index + 1].at(y)
        return low + (high - low) * (x - xs[index]) / (xs[index + 1] - xs[index])


class GridCost:
    """See the module; `shared` of a mixed pass is the cheapest decode step."""

    def __init__(self, rows: Sequence[dict[str, str]]) -> None:
        """`rows` have the columns kind, batch, new_tokens, context and latency_ms."""
        decode = _rows(rows, kind="decode", column="batch")
        prefill = _rows(rows, kind="prefill", column="new_tokens")
        if 1.0 not in decode:
            raise ValueError("no decode with batch 1")
        prefill[1.0] = decode[1.0]
        self._decode = _Surface(decode)
        self._prefill = _Surface(prefill)
        self._decode_lines: dict[int, Line] = {}  # by batch: there are few
        self._shared_ms = min(ms for points in decode.values() for _, ms in points)

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`."""
        batch = work.num_decodes
        prefill = self._prefill_ms(work) if work.chunks else 0.0
        if not batch:
            return prefill * MS
        line = self._decode_lines.get(batch)
        if line is None:
            line = self._decode_lines[batch] = self._decode.line(batch)
        decode = line.at(work.num_context_tokens / batch)
        return (combined(prefill, decode, shared=self._shared_ms) if prefill else decode) * MS

    def _prefill_ms(self, work: StepWork) -> float:
        if len(work.chunks) == 1:
            n, p = work.chunks[0]
            return self._prefill.at(n, p)
        at = self._prefill.at
        own = sum(at(n, p) - at(n, 0) for n, p in work.chunks if p)
        return at(work.num_prompt_tokens, 0) + own


def load_grid(path: Path) -> GridCost:
    """A grid from a CSV file of the exports' form."""
    try:
        return _parse(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not a grid of step times: {error}") from None


def grid_names() -> list[str]:
    """The grids that come with the package."""
    folder = files("expediter").joinpath(FOLDER)
    return sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))


def packaged_grid(name: str) -> GridCost:
    """One of `grid_names`, such as "llama3-70b_h100_sxm_sglang_tp8"."""
    if name not in grid_names():
        raise ConfigError(f"no grid is called {name!r}; there are {', '.join(grid_names())}")
    return _parse(files("expediter").joinpath(FOLDER, f"{name}.csv").read_text("utf-8"))


def _parse(text: str) -> GridCost:
    return GridCost(list(csv.DictReader(text.splitlines())))


def _rows(
    rows: Sequence[dict[str, str]], *, kind: str, column: str
) -> dict[float, list[tuple[float, float]]]:
    """The points (context, ms) of one kind by the other column."""
    found: dict[float, list[tuple[float, float]]] = {}
    for row in rows:
        if row["kind"] == kind:
            point = (float(row["context"]), float(row["latency_ms"]))
            found.setdefault(float(row[column]), []).append(point)
    if len(found) < 2:
        raise ValueError(f"fewer than two rows of {kind}")
    return found
