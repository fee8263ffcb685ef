"""A slice's bytes as an array: one view on each side, so that one assignment copies all its runs.

numpy checks that a view stays within the pool.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from expediter.transfer.copy_plan import Slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FINENESS = 16  # halves differ by a part in so many


def at_source(pool: "NDArray[np.uint8]", piece: Slice) -> "NDArray[np.uint8]":
    """A slice's bytes in the source's pool: an axis for each of its axes, then the run's."""
    strides = (*(axis.source_stride for axis in piece.axes), 1)
    return np.ndarray(_shape(piece), np.uint8, pool, piece.source_offset, strides)


def at_target(pool: "NDArray[np.uint8]", piece: Slice) -> "NDArray[np.uint8]":
    """Where a slice's bytes go in the target's pool, in the same shape."""
    strides = (*(axis.target_stride for axis in piece.axes), 1)
    return np.ndarray(_shape(piece), np.uint8, pool, piece.target_offset, strides)


def portions(piece: Slice, max_bytes: int) -> Iterator[Slice]:
    """The same bytes in the same order, in slices of at most so many bytes or of a single run."""
    if piece.total_bytes <= max_bytes or not piece.axes:
        yield piece
        return
    outer, *inner = piece.axes
    inner_bytes = piece.total_bytes // outer.length
    step = max(1, max_bytes // inner_bytes)
    for start in range(0, outer.length, step):
        length = min(step, outer.length - start)
        part = piece._replace(
            source_offset=piece.source_offset + start * outer.source_stride,
            target_offset=piece.target_offset + start * outer.target_stride,
            axes=((outer._replace(length=length),) if length > 1 else ()) + tuple(inner),
        )
        yield from portions(part, max_bytes)


def halves(slices: Sequence[Slice]) -> tuple[list[Slice], list[Slice]]:
    """The same bytes in two parts of about the same size, as far as runs need not be cut."""
    total = sum(piece.total_bytes for piece in slices)
    first: list[Slice] = []
    second: list[Slice] = []
    num_bytes = 0
    for piece in slices:
        for part in portions(piece, max(1, total // _FINENESS)):
            (first if 2 * num_bytes < total else second).append(part)
            num_bytes += part.total_bytes
    return first, second


def _shape(piece: Slice) -> tuple[int, ...]:
    return (*(axis.length for axis in piece.axes), piece.num_bytes)
