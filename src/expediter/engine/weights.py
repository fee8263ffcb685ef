"""A model's weights, shaped for speed.

Products that share an input are one matrix (Q, K and V; gate and up). Whatever only scales a
product's input is multiplied into its weights, in float32, before they are rounded: the
gains of RMSNorm with the square root of the width, and attention's 1/sqrt(head size). Only
four-bit codes have no place for gains, and take them along.
"""

import math
from dataclasses import dataclass

import torch

from expediter.engine.checkpoint import Checkpoint
from expediter.engine.int4 import ROW_MULTIPLE, Int4Matrix, int4_serves, joined
from expediter.engine.linear import Int4Linear, Linear, make_linear


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


class WeightLoader:
    """Reads one checkpoint into one dtype and device."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._dtype = dtype
        self._device = device
        self._uses_int4 = int4_serves(dtype, device)

    def load(self) -> ModelWeights:
        """All of the model; `ModelLoadError` names the first tensor that is not as it should."""
        config = self._config
        shape = (config.vocab_size, config.hidden_size)
        embedding = self._checkpoint.tensor("model.embed_tokens.weight", shape).float()
        head = embedding
        if not config.tied_embeddings:
            head = self._checkpoint.tensor("lm_head.weight", shape).float()
        return ModelWeights(
            embedding=self._place(embedding),
            layers=[self._layer(f"model.layers.{i}") for i in range(config.num_layers)],
            head=make_linear(self._place(head * self._gain("model.norm"))),
        )

    def _layer(self, name: str) -> LayerWeights:
        config = self._config
        width, inner = config.hidden_size, config.intermediate_size
        attended = config.num_heads * config.head_size
        return LayerWeights(
            qkv=self._qkv(f"{name}.self_attn", self._gain(f"{name}.input_layernorm")),
            attention_output=self._single(
                f"{name}.self_attn.o_proj", (width, attended), has_bias=config.output_bias
            ),
            gate_up=self._gate_up(f"{name}.mlp", self._gain(f"{name}.post_attention_layernorm")),
            down=self._single(f"{name}.mlp.down_proj", (width, inner), has_bias=config.mlp_bias),
        )

    def _qkv(self, name: str, gain: torch.Tensor) -> Linear:
        config = self._config
        scales = {"q": 1 / math.sqrt(config.head_size), "k": 1.0, "v": 1.0}
        parts = []
        for part, scale in scales.items():
            heads = config.num_heads if part == "q" else config.num_kv_heads
            shape = (heads * config.head_size, config.hidden_size)
            read = self._read(f"{name}.{part}_proj", shape, has_bias=config.qkv_bias)
            parts.append(read.scaled(scale))
        return self._joined(parts, gain)

    def _gate_up(self, name: str, gain: torch.Tensor) -> Linear:
        shape = (self._config.intermediate_size, self._config.hidden_size)
        has_bias = self._config.mlp_bias
        names = (f"{name}.gate_proj", f"{name}.up_proj")
        return self._joined([self._read(part, shape, has_bias=has_bias) for part in names], gain)

    def _single(self, name: str, shape: tuple[int, int], *, has_bias: bool) -> Linear:
        return self._joined([self._read(name, shape, has_bias=has_bias)])

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
        gain = None if gain is None else self._place(gain)
        return Int4Linear(joined(matrices), many=linear, bias=bias, gain=gain)

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)
