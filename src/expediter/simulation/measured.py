"""Step times measured on one's own worker, as files.

`expediter calibrate` writes JSON of one of two forms, told apart by `form`:

    {"form": "fit", "source": "vLLM 0.11, Llama-3-8B, one L40S, 2026-05-01", "error": 0.04,
     "prefill": [8.0, 0.055, 3.0e-6], "decode": [11.5, 0.037, 8.0e-5]}

    {"form": "grid", "source": "...", "points": [
      {"kind": "prefill", "batch": 1, "new_tokens": 64, "context": 0, "latency_ms": 9.1},
      {"kind": "decode", "batch": 8, "new_tokens": 1, "context": 512, "latency_ms": 12.0}]}

All times are milliseconds. `prefill` and `decode` are the a, b, c of `QuadraticFit`. In a point,
`context` is what came before the new tokens, for each request of a decode. A grid needs at least
two different `new_tokens` (prefill) and two different `batch` (decode), each of the latter with
batch 1 among them. `source` says what was measured, where and when; `error` is the mean relative
error of the fit on its own points. Both may be left out.
"""

from pathlib import Path
from typing import Literal

import msgspec

from expediter.errors import ConfigError
from expediter.simulation.costs import CostModel, QuadraticFit
from expediter.simulation.grid import GridCost, load_grid

Coefficients = tuple[float, float, float]


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step that was timed."""

    kind: Literal["prefill", "decode"]
    batch: int
    new_tokens: int
    context: int
    latency_ms: float


class MeasuredFit(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="form",
    tag="fit",
    forbid_unknown_fields=True,
):
    """Coefficients of `QuadraticFit`."""

    prefill: Coefficients
    decode: Coefficients
    source: str = ""
    error: float | None = None

    def cost(self) -> CostModel:
        """The model with these coefficients."""
        return QuadraticFit(prefill=self.prefill, decode=self.decode)


class MeasuredGrid(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="form",
    tag="grid",
    forbid_unknown_fields=True,
):
    """Points to interpolate between."""

    points: list[Point]
    source: str = ""

    def cost(self) -> CostModel:
        """The grid through these points; ValueError if they are too few."""
        return GridCost(
            [{k: str(v) for k, v in msgspec.to_builtins(p).items()} for p in self.points]
        )


Measured = MeasuredFit | MeasuredGrid


def save_cost(path: Path, measured: Measured) -> None:
    """Write what `load_cost` reads."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=2) + b"\n")


def load_cost(path: Path) -> CostModel:
    """The cost model in a file: JSON as above, or a grid as CSV; ConfigError if it is neither."""
    if path.suffix == ".csv":
        return load_grid(path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measured).cost()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not a cost model: {error}") from None
