"""Which bytes of one pool go where in another: strided slices, whoever copies them.

A block is one run of bytes over all its layers and heads, if both pools hold the same heads. Of
some layers or heads it is a few runs at fixed distances. Blocks of one prompt are often
neighbours, and each stretch of neighbours, rising or falling, is one slice.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from expediter.errors import LayoutMismatch
from expediter.transfer.layout import KVLayout, check_compatible


class Axis(NamedTuple):
    """A slice repeats `length` times, so many bytes apart; strides may be negative."""

    length: int
    source_stride: int
    target_stride: int


class Slice(NamedTuple):
    """Runs of `num_bytes` to copy: one, or as many as the axes (outermost first) make of it."""

    source_offset: int
    target_offset: int
    num_bytes: int
    axes: tuple[Axis, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes of all runs."""
        total = self.num_bytes
        for axis in self.axes:
            total *= axis.length
        return total


class _Run(NamedTuple):
    """Blocks `source + i * source_step` go to `target + i * target_step`."""

    source: int
    target: int
    num_blocks: int
    source_step: int
    target_step: int


def copy_plan(
    source: KVLayout,
    target: KVLayout,
    *,
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
    layers: range | None = None,
    heads: range | None = None,
) -> list[Slice]:
    """Slices that copy each source block to the target block at the same index.

    Of `layers` (default: all), and of the model's `heads` (default: all) those that both hold.
    Raises LayoutMismatch if the layouts do not agree, ValueError for blocks or layers outside.
    """
    check_compatible(source, target)
    runs = _runs(_checked(source_blocks, source), _checked(target_blocks, target))
    layers = range(source.num_layers) if layers is None else layers
    if layers and not 0 <= layers[0] <= layers[-1] < source.num_layers:
        raise ValueError(f"{layers} of layers is not within {source.num_layers}")
    common = _overlap(source.heads, target.heads)
    common = common if heads is None else _overlap(common, heads)
    if not (common and layers):
        return []
    from_head, to_head = common[0] - source.heads[0], common[0] - target.heads[0]
    axes = _axes(source, target, counts=(len(layers), 2, len(common)))
    there, here = source.block_bytes, target.block_bytes
    return [
        _merged(
            source.offset(layer=layers[0], kv=0, head=from_head, block=run.source),
            target.offset(layer=layers[0], kv=0, head=to_head, block=run.target),
            source.piece_bytes,
            axes=(Axis(run.num_blocks, run.source_step * there, run.target_step * here), *axes),
        )
        for run in runs
    ]


def shards_for(target: KVLayout, sources: Sequence[KVLayout]) -> list[tuple[int, range]]:
    """Which of a worker's pools to read for `target`, and which of the model's heads from each.

    Every head of the target is read from one pool; of ranks that hold the same head, different
    targets read different ones. Raises LayoutMismatch if some head is in none of the pools.
    """
    chosen: dict[int, list[int]] = {}
    for head in target.heads:
        holders = [index for index, layout in enumerate(sources) if head in layout.heads]
        if not holders:
            raise LayoutMismatch(f"no pool of the other worker holds KV head {head}")
        chosen.setdefault(holders[target.tp_rank % len(holders)], []).append(head)
    return [(index, range(heads[0], heads[-1] + 1)) for index, heads in chosen.items()]


def check_within(slices: Sequence[Slice], *, source: int, target: int) -> None:
    """Raises LayoutMismatch if a slice leaves pools of so many bytes."""
    for piece in slices:
        for offset, index, limit in (
            (piece.source_offset, 1, source),
            (piece.target_offset, 2, target),
        ):
            reaches = [(axis[0] - 1) * axis[index] for axis in piece.axes]
            lowest = offset + sum(reach for reach in reaches if reach < 0)
            highest = offset + sum(reach for reach in reaches if reach > 0) + piece.num_bytes
            if lowest < 0 or highest > limit:
                raise LayoutMismatch(f"bytes {lowest} to {highest} of a pool of {limit}")


def expand(slices: Sequence[Slice]) -> NDArray[np.int64]:
    """Every run by itself: rows of source offset, target offset, number of bytes."""
    parts = [_expand(piece) for piece in slices]
    return np.concatenate(parts) if parts else np.empty((0, 3), np.int64)


def _expand(piece: Slice) -> NDArray[np.int64]:
    source = np.array([piece.source_offset], np.int64)
    target = np.array([piece.target_offset], np.int64)
    for length, source_stride, target_stride in piece.axes:
        steps = np.arange(length, dtype=np.int64)
        source = (source[:, None] + steps * source_stride).ravel()
        target = (target[:, None] + steps * target_stride).ravel()
    return np.stack([source, target, np.full_like(source, piece.num_bytes)], axis=1)


def _checked(blocks: Sequence[int], layout: KVLayout) -> NDArray[np.int64]:
    array = np.asarray(blocks, np.int64)
    if array.size and not 0 <= array.min() <= array.max() < layout.num_blocks:
        raise ValueError(f"a block id is not within the pool's {layout.num_blocks} blocks")
    return array


def _runs(source: NDArray[np.int64], target: NDArray[np.int64]) -> list[_Run]:
    """Maximal stretches in which both sides go from neighbour to neighbour, each its own way."""
    if len(source) != len(target):
        raise ValueError(f"{len(source)} blocks do not fit into {len(target)}")
    if not len(source):
        return []
    steps = np.stack([np.diff(source), np.diff(target)])
    is_neighbour = (np.abs(steps) == 1).all(axis=0)
    turns = np.zeros_like(is_neighbour)
    turns[1:] = is_neighbour[:-1] & (steps[:, 1:] != steps[:, :-1]).any(axis=0)
    starts = [0, *(np.flatnonzero(~is_neighbour | turns) + 1).tolist(), len(source)]
    return [
        _Run(
            int(source[start]),
            int(target[start]),
            end - start,
            *((1, 1) if end == start + 1 else map(int, steps[:, start])),
        )
        for start, end in pairwise(starts)
    ]


def _axes(source: KVLayout, target: KVLayout, *, counts: tuple[int, int, int]) -> tuple[Axis, ...]:
    """Layers, then keys and values, then heads: how far apart they are in each pool."""
    num_layers, num_kinds, num_heads = counts
    rows: tuple[tuple[int, Callable[[KVLayout], int]], ...] = (
        (num_layers, lambda layout: 2 * layout.num_kv_heads),
        (num_kinds, lambda layout: layout.num_kv_heads),
        (num_heads, lambda _: 1),
    )
    return tuple(
        Axis(count, _stride(source, num_rows(source)), _stride(target, num_rows(target)))
        for count, num_rows in rows
    )


def _stride(layout: KVLayout, num_rows: int) -> int:
    return num_rows * layout.piece_bytes


def _overlap(first: range, second: range) -> range:
    return range(max(first.start, second.start), min(first.stop, second.stop))


def _merged(
    source_offset: int, target_offset: int, num_bytes: int, *, axes: tuple[Axis, ...]
) -> Slice:
    """A slice with as few axes as say the same: what is contiguous in both pools is one run."""
    kept: list[Axis] = []
    for axis in reversed(axes):
        if axis.length == 1:
            continue
        inner = kept[-1] if kept else Axis(1, num_bytes, num_bytes)
        reach = (inner.length * inner.source_stride, inner.length * inner.target_stride)
        if reach != axis[1:]:
            kept.append(axis)
        elif kept:
            kept[-1] = Axis(inner.length * axis.length, *inner[1:])
        else:
            num_bytes *= axis.length
    return Slice(source_offset, target_offset, num_bytes, tuple(reversed(kept)))
