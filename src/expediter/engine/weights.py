"""A model's weights, shaped for speed.

Products that share an input are one matrix (Q, K and V; gate and up). Whatever only scales a
product's input is multiplied into its weights, in float32, before they are rounded: the
gains of RMSNorm with the square root of the width, and attention's 1/sqrt(head size). Only
four-bit codes have no place for gains, and take them along. A rank of several reads the same
files and keeps its part (`shard.py`).
"""

import math
from dataclasses import dataclass

import torch

from expediter.engine.checkpoint import Checkpoint
from expediter.engine.int4 import GROUP, ROW_MULTIPLE, Int4Matrix, int4_serves, joined
from expediter.engine.linear import Int4Linear, Int4Maker, Int4Product, Linear, make_linear
from expediter.engine.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer's four products."""

    qkv: Linear
    attention_output: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """`embedding` is a plain table; `head` a second, packed copy of it when they are tied."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    head: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projection:
    """One matrix as read, in float32, and its codes if it has any."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    int4: Int4Matrix | None

    def scaled(self, factor: float) -> "_Projection":
        return _Projection(
            weight=self.weight * factor,
            bias=None if self.bias is None else self.bias * factor,
            int4=None if self.int4 is None else self.int4.scaled(factor),
        )

    def rows(self, part: range) -> "_Projection":
        """What makes a part of the output."""
        chosen = slice(part.start, part.stop)
        return _Projection(
            weight=self.weight[chosen],
            bias=None if self.bias is None else self.bias[chosen],
            int4=None if self.int4 is None else _rows(self.int4, chosen),
        )

    def columns(self, part: range, *, takes_bias: bool) -> "_Projection":
        """What a part of the input adds to the output; of all parts, one must take the bias."""
        return _Projection(
            weight=self.weight[:, part.start : part.stop],
            bias=self.bias if takes_bias else None,
            int4=None if self.int4 is None else _columns(self.int4, part),
        )


def _rows(matrix: Int4Matrix, chosen: slice) -> Int4Matrix:
    return Int4Matrix(
        codes=matrix.codes[chosen],
        scales=matrix.scales[chosen],
        minimums=matrix.minimums[chosen],
    )


def _columns(matrix: Int4Matrix, part: range) -> Int4Matrix | None:
    """Those columns' codes; None if they do not begin and end with groups."""
    if part.start % GROUP or part.stop % GROUP:
        return None
    groups = slice(part.start // GROUP, part.stop // GROUP)
    return Int4Matrix(
        codes=matrix.codes[:, part.start : part.stop].contiguous(),
        scales=matrix.scales[:, groups].contiguous(),
        minimums=matrix.minimums[:, groups].contiguous(),
    )


class WeightLoader:
    """Reads one checkpoint, or a rank's part of it, into one dtype and device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
        make_int4: Int4Maker = Int4Product,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._dtype = dtype
        self._device = device
        self._shard = shard
        self._make_int4 = make_int4
        self._uses_int4 = int4_serves(dtype, device)

    def load(self) -> ModelWeights:
        """All of the part; `ModelLoadError` names the first tensor that is not as it should."""
        config = self._config
        shape = (config.vocab_size, config.hidden_size)
        embedding = self._checkpoint.tensor("model.embed_tokens.weight", shape).float()
        head = embedding
        if not config.tied_embeddings:
            head = self._checkpoint.tensor("lm_head.weight", shape).float()
        head = self._of_vocabulary(head) * self._gain("model.norm")
        return ModelWeights(
            embedding=self._place(embedding),
            layers=[self._layer(f"model.layers.{i}") for i in range(config.num_layers)],
            head=make_linear(self._place(head)),
        )

    def _layer(self, name: str) -> LayerWeights:
        config, shard = self._config, self._shard
        width, inner = config.hidden_size, config.intermediate_size
        attended = config.num_heads * config.head_size
        output = self._read(
            f"{name}.self_attn.o_proj", (width, attended), has_bias=config.output_bias
        )
        down = self._read(f"{name}.mlp.down_proj", (width, inner), has_bias=config.mlp_bias)
        is_first = shard.rank == 0
        return LayerWeights(
            qkv=self._qkv(f"{name}.self_attn", self._gain(f"{name}.input_layernorm")),
            attention_output=self._joined(
                [output.columns(self._of_heads(config.num_heads), takes_bias=is_first)]
            ),
            gate_up=self._gate_up(f"{name}.mlp", self._gain(f"{name}.post_attention_layernorm")),
            down=self._joined([down.columns(shard.inner(config), takes_bias=is_first)]),
        )

    def _qkv(self, name: str, gain: torch.Tensor) -> Linear:
        config = self._config
        scales = {"q": 1 / math.sqrt(config.head_size), "k": 1.0, "v": 1.0}
        parts = []
        for part, scale in scales.items():
            heads = config.num_heads if part == "q" else config.num_kv_heads
            shape = (heads * config.head_size, config.hidden_size)
            read = self._read(f"{name}.{part}_proj", shape, has_bias=config.qkv_bias)
            parts.append(read.rows(self._of_heads(heads)).scaled(scale))
        return self._joined(parts, gain)

    def _gate_up(self, name: str, gain: torch.Tensor) -> Linear:
        shape = (self._config.intermediate_size, self._config.hidden_size)
        inner = self._shard.inner(self._config)
        parts = [
            self._read(f"{name}.{part}_proj", shape, has_bias=self._config.mlp_bias).rows(inner)
            for part in ("gate", "up")
        ]
        return self._joined(parts, gain)

    def _of_heads(self, num_heads: int) -> range:
        """Our heads' elements."""
        heads, size = self._shard.part(num_heads), self._config.head_size
        return range(heads.start * size, heads.stop * size)

    def _of_vocabulary(self, head: torch.Tensor) -> torch.Tensor:
        """Our rows, zero past the vocabulary's end."""
        rows = self._shard.vocabulary(self._config)
        ours = head[rows.start : rows.stop]
        missing = len(rows) - len(ours)
        return torch.nn.functional.pad(ours, (0, 0, 0, missing)) if missing else ours

    def _read(self, name: str, shape: tuple[int, int], *, has_bias: bool) -> _Projection:
        read = self._checkpoint.tensor
        return _Projection(
            weight=read(f"{name}.weight", shape).float(),
            bias=read(f"{name}.bias", shape[:1]).float() if has_bias else None,
            int4=self._checkpoint.int4(f"{name}.weight") if self._uses_int4 else None,
        )

    def _gain(self, name: str) -> torch.Tensor:
        width = self._config.hidden_size
        gain = self._checkpoint.tensor(f"{name}.weight", (width,)).float()
        return gain * math.sqrt(width)

    def _joined(self, parts: list[_Projection], gain: torch.Tensor | None = None) -> Linear:
        """The parts' rows in one product of an input that `gain`, if given, scales first."""
        weight = torch.cat([part.weight for part in parts])
        biases = [part.bias for part in parts if part.bias is not None]
        bias = self._place(torch.cat(biases)) if biases else None
        linear = make_linear(self._place(weight if gain is None else weight * gain), bias)
        matrices = [part.int4 for part in parts if part.int4 is not None]
        if len(matrices) < len(parts) or len(weight) % ROW_MULTIPLE:
            return linear
        few = self._make_int4(joined(matrices), gain)
        return Int4Linear(few=few, many=linear, bias=bias)

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)
