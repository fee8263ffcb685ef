"""Matrix products with weights known in advance.

On CPU the weights are stored in oneDNN's blocked layout: about half the time of a plain
product for a handful of rows, no loss for thousands (measured, benchmarks/engine.py). The
packed weight replaces the plain one. A matrix whose checkpoint has four-bit codes keeps them
as well: a few rows cost as much as reading the weights, and codes are a quarter to read.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from expediter.engine.int4 import GROUP, Int4Matrix

PACKED_ROWS = 16  # the row count that the blocked layout is chosen for


class Linear(Protocol):
    """Rows times a fixed matrix, plus a fixed bias if it has one."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, in] to [rows, out]."""
        ...


class FewRowsLinear(Linear, Protocol):
    """One that takes up to `max_rows` rows, because for more another is faster."""

    max_rows: int


Int4Maker = Callable[[Int4Matrix, torch.Tensor | None], FewRowsLinear]  # from codes and gain


class PlainLinear:
    """torch's own layout: for CUDA, and for processors oneDNN cannot serve."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, in] to [rows, out]."""
        return functional.linear(rows, self._weight, self._bias)


class PackedLinear:
    """oneDNN's blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, in] to [rows, out]."""
        output: torch.Tensor = self._product(rows, self._weight, self._bias, "none", [], "")
        return output


class Int4Product:
    """Four-bit codes, by torch; `gain` scales columns, which codes cannot."""

    max_rows = 8  # half of a dense product's time for 1 to 4 rows, nine tenths for 8 (measured)

    def __init__(self, matrix: Int4Matrix, gain: torch.Tensor | None) -> None:
        self._codes, self._groups = matrix.packed()
        self._gain = None if gain is None else gain.to(torch.bfloat16)
        self._product = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, in] to [rows, out]."""
        if self._gain is not None:
            rows = rows * self._gain
        output: torch.Tensor = self._product(rows, self._codes, GROUP, self._groups)
        return output


class Int4Linear:
    """`few` with codes for as many rows as it takes, `many` for more."""

    def __init__(self, *, few: FewRowsLinear, many: Linear, bias: torch.Tensor | None) -> None:
        """`many` has the bias in it."""
        self._few = few
        self._many = many
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, in] to [rows, out]."""
        if len(rows) > self._few.max_rows:
            return self._many(rows)
        output = self._few(rows)
        return output if self._bias is None else output.add_(self._bias)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The faster of the two for this weight's device and dtype."""
    if weight.device.type == "cpu" and _onednn_serves(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def _onednn_serves(dtype: torch.dtype) -> bool:
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    match dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return False
