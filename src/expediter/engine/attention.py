"""Attention over paged keys and values, with query heads that share KV heads.

The heads that share a KV head are folded into the rows of one product, so keys are read once
for all of them. A decode is one row of every such head against its whole context: where a
compiled function serves them, all decodes are its; else requests of similar length go together,
their blocks collected. A prefill chunk is cut into tiles of queries, each against
just the context it may see: no mask of chunk by context is ever made, and the scores of one
tile are all the memory it takes.

Queries come already scaled by 1/sqrt(head size).
"""

import torch
from torch.nn import functional

from expediter.engine.batch import DecodeGroup, ForwardBatch, PrefillChunk

FEW_SLOTS = 512  # up to here one fused call costs less than two products and a softmax
TILE = 64  # queries; the scores of one tile then stay in a core's cache


def attend(query: torch.Tensor, pieces: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    """[token, KV head, query of it, element] over one layer's `pieces`; the same shape back."""
    paged = batch.paged_decodes
    if paged is not None and not batch.prefills:
        return paged.attend(query, pieces)
    if len(batch.decodes) == 1 and not batch.prefills:
        return attend_decodes(query, pieces, batch.decodes[0])
    output = torch.empty_like(query)
    if paged is not None:
        output[paged.rows] = paged.attend(query[paged.rows], pieces)
    for group in batch.decodes:
        output[group.rows] = attend_decodes(query[group.rows], pieces, group)
    for chunk in batch.prefills:
        attend_chunk(query[chunk.rows], pieces, chunk, output=output[chunk.rows])
    return output


def attend_decodes(query: torch.Tensor, pieces: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
    """One query token a request, each over its own context."""
    num_requests, num_kv_heads, num_shared, size = query.shape
    torch.index_select(pieces, 0, group.pieces, out=group.gathered)
    keys, values = group.gathered.view(2, -1, group.num_slots, size)
    if num_requests * group.num_slots <= FEW_SLOTS:
        shape = (num_requests, num_kv_heads, group.num_slots, size)
        return functional.scaled_dot_product_attention(
            query, keys.view(shape), values.view(shape), attn_mask=group.mask[:, None], scale=1.0
        )
    folded = query.reshape(-1, num_shared, size)
    scores = torch.bmm(folded, keys.transpose(1, 2))
    scores.view(num_requests, num_kv_heads * num_shared, -1).add_(group.mask)
    return torch.bmm(scores.softmax(-1), values).view(query.shape)


def attend_chunk(
    query: torch.Tensor, pieces: torch.Tensor, chunk: PrefillChunk, *, output: torch.Tensor
) -> None:
    """Consecutive tokens of one request, each over everything before it and itself."""
    num_tokens, num_kv_heads, num_shared, size = query.shape
    keys, values = _gather(pieces, chunk.pieces, (num_kv_heads, chunk.num_slots, size))
    block_size = pieces.shape[1] // size
    by_head = query.permute(1, 2, 0, 3)
    output_by_head = output.permute(1, 2, 0, 3)
    future = query.new_full((TILE, TILE + block_size), -torch.inf).triu_(1)
    for start in range(0, num_tokens, TILE):
        stop = min(start + TILE, num_tokens)
        diagonal = chunk.num_context + start
        seen = -(-(chunk.num_context + stop) // block_size) * block_size
        folded = by_head[:, :, start:stop].reshape(num_kv_heads, -1, size)
        scores = torch.bmm(folded, keys[:, :seen].transpose(1, 2))
        by_query = scores.view(num_kv_heads, num_shared, stop - start, seen)
        by_query[..., diagonal:].add_(future[: stop - start, : seen - diagonal])
        attended = torch.bmm(scores.softmax(-1), values[:, :seen])
        output_by_head[:, :, start:stop] = attended.view(num_kv_heads, num_shared, -1, size)


def _gather(
    pieces: torch.Tensor, rows: torch.Tensor, shape: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the named pieces, each [request x head, slot, element]."""
    found = pieces.index_select(0, rows).view(2, -1, *shape[1:])
    return found[0], found[1]
