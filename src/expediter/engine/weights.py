"""A model's weights, shaped for speed.

Products that share an input are one matrix (Q, K and V; gate and up). Whatever only scales a
product's input is multiplied into its weights, in float32, before they are rounded: the
gains of RMSNorm with the square root of the width, and attention's 1/sqrt(head size).
"""

import math
from dataclasses import dataclass

import torch

from expediter.engine.checkpoint import Checkpoint
from expediter.engine.linear import Linear, make_linear


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


class WeightLoader:
    """Reads one checkpoint into one dtype and device."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._dtype = dtype
        self._device = device

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
        weights, biases = [], []
        for part, scale in scales.items():
            heads = config.num_heads if part == "q" else config.num_kv_heads
            shape = (heads * config.head_size, config.hidden_size)
            weight, bias = self._read(f"{name}.{part}_proj", shape, has_bias=config.qkv_bias)
            weights.append(weight * (gain * scale))
            if bias is not None:
                biases.append(bias * scale)
        return self._joined(weights, biases)

    def _gate_up(self, name: str, gain: torch.Tensor) -> Linear:
        shape = (self._config.intermediate_size, self._config.hidden_size)
        weights, biases = [], []
        for part in ("gate_proj", "up_proj"):
            weight, bias = self._read(f"{name}.{part}", shape, has_bias=self._config.mlp_bias)
            weights.append(weight * gain)
            if bias is not None:
                biases.append(bias)
        return self._joined(weights, biases)

    def _single(self, name: str, shape: tuple[int, int], *, has_bias: bool) -> Linear:
        weight, bias = self._read(name, shape, has_bias=has_bias)
        return self._joined([weight], [] if bias is None else [bias])

    def _read(
        self, name: str, shape: tuple[int, int], *, has_bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = self._checkpoint.tensor(f"{name}.weight", shape).float()
        if not has_bias:
            return weight, None
        return weight, self._checkpoint.tensor(f"{name}.bias", shape[:1]).float()

    def _gain(self, name: str) -> torch.Tensor:
        width = self._config.hidden_size
        gain = self._checkpoint.tensor(f"{name}.weight", (width,)).float()
        return gain * math.sqrt(width)

    def _joined(self, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> Linear:
        bias = self._place(torch.cat(biases)) if biases else None
        return make_linear(self._place(torch.cat(weights)), bias)

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)
