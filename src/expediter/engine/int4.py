"""Matrices as GGUF's four-bit formats store them: codes in groups of 32 along a row.

A weight is scale * code + minimum, with a scale and a minimum for each group (ggml's
block_q4_0 and block_q4_1). Scaling, ordering and joining rows keep that form, so a product
can read half a byte for each weight; whatever scales columns cannot be folded in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import gguf
import numpy as np
import numpy.typing as npt
import torch

GROUP = 32  # weights that share a scale
ROW_MULTIPLE = 16  # torch packs this many rows together


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Matrix:
    """`codes` [row, column] from 0 to 15; `scales` and `minimums` [row, group], float32."""

    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor

    def scaled(self, factor: float) -> Self:
        """The same matrix times a number."""
        return type(self)(
            codes=self.codes, scales=self.scales * factor, minimums=self.minimums * factor
        )

    def reordered(self, rows: torch.Tensor) -> Self:
        """Row i becomes what row `rows[i]` was."""
        return type(self)(
            codes=self.codes[rows], scales=self.scales[rows], minimums=self.minimums[rows]
        )

    def packed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What torch's int4 product takes: codes, and [group, row, 2] of scale and midpoint."""
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(self.codes.int(), 1)
        midpoints = self.minimums + 8 * self.scales
        groups = torch.stack([self.scales, midpoints], -1).transpose(0, 1)
        return packed, groups.to(torch.bfloat16).contiguous()


def joined(matrices: Sequence[Int4Matrix]) -> Int4Matrix:
    """One matrix with the rows of all."""
    return Int4Matrix(
        codes=torch.cat([matrix.codes for matrix in matrices]),
        scales=torch.cat([matrix.scales for matrix in matrices]),
        minimums=torch.cat([matrix.minimums for matrix in matrices]),
    )


def read_int4(
    blocks: npt.NDArray[np.uint8], quantization: gguf.GGMLQuantizationType
) -> Int4Matrix | None:
    """A matrix from its rows of bytes; None if another format holds it."""
    match quantization:
        case gguf.GGMLQuantizationType.Q4_0:
            num_floats = 1
        case gguf.GGMLQuantizationType.Q4_1:
            num_floats = 2
        case _:
            return None
    groups = blocks.reshape(len(blocks), -1, 2 * num_floats + GROUP // 2)
    nibbles = groups[..., 2 * num_floats :]
    codes = np.concatenate([nibbles & 15, nibbles >> 4], -1).reshape(len(blocks), -1)
    header = np.ascontiguousarray(groups[..., : 2 * num_floats]).view(np.float16)
    floats = torch.from_numpy(header.astype(np.float32))
    scales = floats[..., 0]
    minimums = floats[..., 1] if num_floats == 2 else -8 * scales
    return Int4Matrix(codes=torch.from_numpy(codes), scales=scales, minimums=minimums)


def int4_serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch multiplies codes fast here; its fallback for other processors is slow."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    )
