"""Matrices of four-bit codes as the compiled product reads them."""

import math

import torch

from expediter.engine.int4 import GROUP, Int4Matrix
from expediter.engine.kernels.compiled import Library
from expediter.engine.kernels.int4_product import (
    CODES_PER_LANE,
    COLUMNS,
    LARGEST_SCALE,
    PARAMETERS,
    ROWS_PER_PASS,
    int4_product,
)
from expediter.engine.kernels.memory import aligned

MAX_ROWS = 32  # in passes of eight; a dense product is not faster yet (measured)


def products_source() -> str:
    """What `Int4Products` calls."""
    return "\n".join(int4_product(_name(rows), rows) for rows in range(1, ROWS_PER_PASS + 1))


def _name(num_rows: int) -> str:
    return f"int4_product_{num_rows}"


class Int4Products:
    """Makes products, which share a room: a model's thread runs them one after the other."""

    def __init__(self, library: Library) -> None:
        self._functions = [
            library.function(_name(rows), len(PARAMETERS)) for rows in range(1, ROWS_PER_PASS + 1)
        ]
        self._scaled = torch.empty(0, dtype=torch.bfloat16)
        self._sums = torch.empty(0)

    def __call__(self, matrix: Int4Matrix, gain: torch.Tensor | None) -> "CompiledInt4Product":
        """The product of up to `MAX_ROWS` rows, whose columns `gain` scales first, if given."""
        size = ROWS_PER_PASS * matrix.codes.shape[1]
        if self._scaled.numel() < size:
            self._scaled = torch.empty(size, dtype=torch.bfloat16)
            self._sums = torch.empty(size // GROUP)
        return CompiledInt4Product(matrix, gain, products=self)

    def run(self, rows: torch.Tensor, *matrix: int, output: torch.Tensor) -> None:
        """Fill `output`; `matrix` is where gain and tiles are, and how many groups and tiles."""
        gain, tiles, num_groups, num_tiles = matrix
        self._functions[len(rows) - 1](
            rows.data_ptr(),
            gain,
            self._scaled.data_ptr(),
            self._sums.data_ptr(),
            tiles,
            output.data_ptr(),
            num_groups,
            num_tiles,
        )


class CompiledInt4Product:
    """One matrix."""

    max_rows = MAX_ROWS

    def __init__(
        self, matrix: Int4Matrix, gain: torch.Tensor | None, *, products: Int4Products
    ) -> None:
        self._products = products
        self._num_columns, width = matrix.codes.shape
        tiles, unit = packed_tiles(matrix)
        # What float16 cannot hold is taken out of the scales and put onto the rows: a power of 2.
        self._gain = (torch.ones(width) if gain is None else gain.float()) * unit
        self._tiles = tiles
        self._matrix = (
            self._gain.data_ptr(),
            tiles.data_ptr(),
            width // GROUP,
            self._num_columns // COLUMNS,
        )

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, in] to [rows, out]."""
        rows, output = rows.contiguous(), rows.new_empty(len(rows), self._num_columns)
        if len(rows) <= ROWS_PER_PASS:
            self._products.run(rows, *self._matrix, output=output)
            return output
        for start in range(0, len(rows), ROWS_PER_PASS):
            part = slice(start, start + ROWS_PER_PASS)
            self._products.run(rows[part], *self._matrix, output=output[part])
        return output


def packed_tiles(matrix: Int4Matrix) -> tuple[torch.Tensor, float]:
    """Bytes of [tile, group], see `int4_product`, and what all weights are to be multiplied by."""
    num_tiles, num_groups = len(matrix.codes) // COLUMNS, matrix.codes.shape[1] // GROUP
    # [tile, column, group, vector, byte, half, parity]: a lane has one column's of one parity.
    places = matrix.codes.view(num_tiles, COLUMNS, num_groups, -1, CODES_PER_LANE // 2, 2, 2)
    joined = places[..., 0, :] | places[..., 1, :] << 4
    codes = joined.permute(0, 2, 3, 1, 5, 4).flatten(2)
    unit = _unit(float(torch.maximum(matrix.scales.abs(), matrix.minimums.abs()).max()))
    floats = [
        (part / unit).half().view(num_tiles, COLUMNS, num_groups).transpose(1, 2)
        for part in (matrix.scales, matrix.minimums)
    ]
    parts = [part.contiguous().view(torch.uint8) for part in (codes, *floats)]
    return aligned(torch.cat(parts, -1)), unit


def _unit(largest: float) -> float:
    """A power of two in whose units float16 holds the largest scale of a matrix, and many less."""
    if not (math.isfinite(largest) and largest > 0):
        return 1.0
    return 2.0 ** math.ceil(math.log2(largest / LARGEST_SCALE))
