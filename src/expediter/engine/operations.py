"""What a layer does between its products."""

import math
from typing import Protocol

import torch
from torch.nn import functional

from expediter.engine.architecture import ModelConfig
from expediter.engine.rope import Rotation, rotate_in_place


class Operations(Protocol):
    """On rows of tokens; what they return is new."""

    def normalize(self, rows: torch.Tensor) -> torch.Tensor:
        """x / sqrt(sum(x^2) + n eps): RMSNorm less its gain and sqrt(n), which weights hold."""
        ...

    def place(
        self, heads: torch.Tensor, rotation: Rotation, *, pool: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Rotate queries and keys of [token, head, element], and write keys and values.

        `pool` is a layer's, [slot of a head, element]; `slots` [token, K heads then V heads].
        """
        ...

    def gate(self, rows: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, for rows of gates and then ups; `rows` may be spoilt."""
        ...


class TorchOperations:
    """For any device and dtype."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        # The epsilon under the root, for a sum in place of a mean.
        epsilon = math.sqrt(config.hidden_size * config.rms_eps)
        self._epsilon = torch.full((), epsilon, dtype=dtype, device=device)

    def normalize(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Operations`."""
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return rows / torch.hypot(length, self._epsilon)

    def place(
        self, heads: torch.Tensor, rotation: Rotation, *, pool: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """See `Operations`."""
        config = self._config
        rotate_in_place(heads[:, : config.num_heads + config.num_kv_heads], *rotation)
        pool[slots] = heads[:, config.num_heads :]

    def gate(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Operations`."""
        gate, up = rows.chunk(2, -1)
        return functional.silu(gate).mul_(up)
