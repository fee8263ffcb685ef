"""Memory that begins where a vector may."""

import torch

ALIGNMENT = 64


def aligned_empty(num_bytes: int) -> torch.Tensor:
    """Bytes of any value."""
    room = torch.empty(num_bytes + ALIGNMENT, dtype=torch.uint8)
    start = -room.data_ptr() % ALIGNMENT
    return room[start : start + num_bytes]


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of bytes."""
    return aligned_empty(tensor.numel()).view(tensor.shape).copy_(tensor)
