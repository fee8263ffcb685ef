"""Decodes over a pool of blocks, with the compiled attention."""

import torch

from expediter.engine.batch import PagedDecodes
from expediter.engine.kernels.attention import PARAMETERS, SEGMENT, Shape, decode_attention
from expediter.engine.kernels.compiled import Library
from expediter.engine.kernels.memory import aligned_empty


def attention_source(shape: Shape) -> str:
    """What `PagedAttention` calls."""
    return decode_attention("decode_attention", shape)


class PagedAttention:
    """For one shape of heads and blocks."""

    def __init__(self, library: Library, shape: Shape) -> None:
        self._shape = shape
        self._function = library.function("decode_attention", len(PARAMETERS))
        self._partial = aligned_empty(0)

    def __call__(
        self, query: torch.Tensor, pieces: torch.Tensor, decodes: PagedDecodes
    ) -> torch.Tensor:
        """[request, KV head, query of it, element] over a layer's `pieces`; the same back."""
        num_requests = len(query)
        num_segments = -(-decodes.longest // SEGMENT)
        num_bytes = self._shape.partial_bytes(num_requests, num_segments)
        if self._partial.numel() < num_bytes:
            self._partial = aligned_empty(num_bytes)
        output = query.new_empty(query.shape)
        self._function(
            query.data_ptr(),
            query.stride(0) * query.element_size(),
            pieces.data_ptr(),
            pieces.shape[1] * pieces.element_size(),
            decodes.tables.data_ptr(),
            decodes.tables.shape[1],
            decodes.lengths.data_ptr(),
            self._partial.data_ptr(),
            output.data_ptr(),
            num_requests,
            num_segments,
        )
        return output
