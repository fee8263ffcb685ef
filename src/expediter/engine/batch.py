"""One step's chunks as flat tensors.

All tokens of a step form one row of tokens, so every matrix product runs once for everybody;
only attention looks at requests one by one. Decodes (chunks of one token) come first: as a table
of their blocks, or sorted by context and cut into groups that attend together, padded to the
group's longest. Prefill chunks follow, each alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch

from expediter.scheduling.output import ScheduledChunk
from expediter.transfer.layout import KVLayout

MAX_GROUP_BLOCKS = 2048  # blocks gathered for one group of decodes, padding included
MAX_GROUP_SPREAD = 1.25  # longest context over shortest in a group, beyond a few blocks
_FREE_SPREAD_BLOCKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Decodes that attend together: `rows` of the step, each with `num_slots` gathered slots.

    `pieces` names rows of the layer's pool, [K or V, request, head, block] flattened;
    `mask` [request, 1, num_slots] is minus infinity past each request's own context.
    `gathered` is room for those rows, one for all layers (measured: a new one costs more).
    """

    rows: slice
    num_slots: int
    pieces: torch.Tensor
    mask: torch.Tensor
    gathered: torch.Tensor


class DecodeAttention(Protocol):
    """Attention that reads a layer's blocks where they lie."""

    def __call__(
        self, query: torch.Tensor, pieces: torch.Tensor, decodes: "PagedDecodes"
    ) -> torch.Tensor:
        """[request, KV head, query of it, element] over a layer's `pieces`; the same back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedDecodes:
    """All decodes of a step: blocks [request, block] and lengths of contexts, this token's too."""

    rows: slice
    tables: torch.Tensor
    lengths: torch.Tensor
    longest: int
    attention: DecodeAttention

    def attend(self, query: torch.Tensor, pieces: torch.Tensor) -> torch.Tensor:
        """See `DecodeAttention`."""
        return self.attention(query, pieces, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Several tokens of one request; `num_context` tokens are before them."""

    rows: slice
    num_context: int
    num_slots: int
    pieces: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """A step. `slots` [token, K heads then V heads] says where each token's KV is written.

    Decodes are either paged or in groups.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    paged_decodes: PagedDecodes | None
    decodes: list[DecodeGroup]
    prefills: list[PrefillChunk]
    sample_rows: torch.Tensor
    sampling: list[ScheduledChunk]  # chunk i's next token comes from sample row i


class BatchBuilder:
    """Turns chunks into a `ForwardBatch` for one pool."""

    def __init__(
        self,
        layout: KVLayout,
        *,
        dtype: torch.dtype,
        device: torch.device,
        attention: DecodeAttention | None = None,
    ) -> None:
        """Decodes are paged if `attention` is there for them."""
        self._layout = layout
        self._dtype = dtype
        self._device = device
        self._attention = attention
        pieces = torch.arange(2 * layout.num_kv_heads)
        self._pieces_per_block = layout.num_layers * len(pieces)
        self._piece_in_layer = pieces.view(2, 1, -1, 1)
        self._slot_in_layer = pieces * layout.block_size

    def build(self, chunks: Sequence[ScheduledChunk]) -> ForwardBatch:
        """The step's tensors; chunks keep no order, `sampling` says whose rows are whose."""
        paged = [] if self._attention is None else [c for c in chunks if c.num_new_tokens == 1]
        groups = [] if self._attention is not None else list(_grouped(chunks))
        prefills = [chunk for chunk in chunks if chunk.num_new_tokens > 1]
        ordered = [*paged, *chain(*groups), *prefills]
        ends = _running_total(ordered)
        starts = dict(zip(map(id, ordered), [0, *ends], strict=False))
        sampling = [chunk for chunk in ordered if chunk.samples]
        last = [starts[id(chunk)] + chunk.num_new_tokens - 1 for chunk in sampling]
        return ForwardBatch(
            token_ids=self._integers([token for chunk in ordered for token in chunk.token_ids]),
            positions=self._integers(list(chain(*map(_positions, ordered)))),
            slots=self._slots(ordered),
            paged_decodes=self._paged(paged),
            decodes=[self._decode_group(group, starts[id(group[0])]) for group in groups],
            prefills=[self._prefill(chunk, starts[id(chunk)]) for chunk in prefills],
            sample_rows=self._integers(last),
            sampling=sampling,
        )

    def _slots(self, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
        size = self._layout.block_size
        slots_per_block = self._pieces_per_block * size
        slots = [
            chunk.block_ids[position // size] * slots_per_block + position % size
            for chunk in chunks
            for position in _positions(chunk)
        ]
        return self._on_device(torch.tensor(slots)[:, None] + self._slot_in_layer)

    def _paged(self, chunks: Sequence[ScheduledChunk]) -> PagedDecodes | None:
        if self._attention is None or not chunks:
            return None
        lengths = list(map(_context, chunks))
        return PagedDecodes(
            rows=slice(0, len(chunks)),
            tables=self._on_device(self._tables(chunks)),
            lengths=self._integers(lengths),
            longest=max(lengths),
            attention=self._attention,
        )

    def _tables(self, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
        """Blocks [request, block]; padding names block 0."""
        tables = np.zeros((len(chunks), max(map(self._num_blocks, chunks))), np.int64)
        for table, chunk in zip(tables, chunks, strict=True):
            used = self._num_blocks(chunk)
            table[:used] = chunk.block_ids[:used]
        return torch.from_numpy(tables)

    def _decode_group(self, chunks: Sequence[ScheduledChunk], start: int) -> DecodeGroup:
        tables = self._tables(chunks)
        num_slots = tables.shape[1] * self._layout.block_size
        # What padding names is finite, and masked.
        lengths = torch.tensor([_context(chunk) for chunk in chunks])
        mask = torch.zeros(len(chunks), 1, num_slots, dtype=self._dtype)
        mask[torch.arange(num_slots) >= lengths[:, None, None]] = -torch.inf
        pieces = self._pieces(tables)
        width = self._layout.block_size * self._layout.head_size
        return DecodeGroup(
            rows=slice(start, start + len(chunks)),
            num_slots=num_slots,
            pieces=pieces,
            mask=self._on_device(mask),
            gathered=torch.empty(len(pieces), width, dtype=self._dtype, device=self._device),
        )

    def _prefill(self, chunk: ScheduledChunk, start: int) -> PrefillChunk:
        used = self._num_blocks(chunk)
        table = torch.tensor(chunk.block_ids[:used])[None]
        return PrefillChunk(
            rows=slice(start, start + chunk.num_new_tokens),
            num_context=chunk.num_computed_tokens,
            num_slots=used * self._layout.block_size,
            pieces=self._pieces(table),
        )

    def _pieces(self, table: torch.Tensor) -> torch.Tensor:
        """[request, block] ids to pool rows, ordered K or V, request, head, block."""
        pieces = self._piece_in_layer + table[None, :, None, :] * self._pieces_per_block
        return self._on_device(pieces.flatten())

    def _num_blocks(self, chunk: ScheduledChunk) -> int:
        return -(-_context(chunk) // self._layout.block_size)

    def _integers(self, values: list[int]) -> torch.Tensor:
        return self._on_device(torch.tensor(values, dtype=torch.int64))

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)


def _context(chunk: ScheduledChunk) -> int:
    return chunk.num_computed_tokens + chunk.num_new_tokens


def _positions(chunk: ScheduledChunk) -> range:
    return range(chunk.num_computed_tokens, _context(chunk))


def _running_total(chunks: Sequence[ScheduledChunk]) -> list[int]:
    total, ends = 0, []
    for chunk in chunks:
        total += chunk.num_new_tokens
        ends.append(total)
    return ends


def _grouped(chunks: Sequence[ScheduledChunk]) -> Iterator[list[ScheduledChunk]]:
    """Decodes by context, cut where padding or size would cost more than another group."""
    decodes = sorted((c for c in chunks if c.num_new_tokens == 1), key=_context)
    group: list[ScheduledChunk] = []
    for chunk in decodes:
        if group and _is_apart(group, chunk):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _is_apart(group: Sequence[ScheduledChunk], chunk: ScheduledChunk) -> bool:
    shortest = len(group[0].block_ids)
    blocks = len(chunk.block_ids)
    if blocks * (len(group) + 1) > MAX_GROUP_BLOCKS:
        return True
    return blocks > shortest * MAX_GROUP_SPREAD + _FREE_SPREAD_BLOCKS
