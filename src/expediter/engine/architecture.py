"""What a checkpoint says of its model: the numbers that fix every tensor's shape.

Llama, Mistral and Qwen2 are one decoder (RMSNorm, rotary positions, grouped-query attention,
gated SiLU) with different biases and rotary scalings, so one record describes all of them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from expediter.errors import ModelLoadError

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
ROPE_KINDS: tuple[RopeKind, ...] = ("default", "linear", "dynamic", "llama3", "yarn")
HF_MODEL_TYPES = ("llama", "mistral", "qwen2")
GGUF_ARCHITECTURES = ("llama", "qwen2")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions. `divisors` divide the inverse frequencies one by one (GGUF's Llama 3)."""

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-style decoder. `max_position` is the longest context it was made for."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position: int
    rms_eps: float
    tied_embeddings: bool
    rope: RopeConfig
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(
                f"{self.name}: {self.num_heads} attention heads cannot share "
                f"{self.num_kv_heads} KV heads; the first must be a multiple of the second"
            )
        if self.head_size % 2:
            raise ModelLoadError(f"{self.name}: head size {self.head_size} must be even")

    @property
    def num_queries_per_kv(self) -> int:
        """How many query heads share one KV head."""
        return self.num_heads // self.num_kv_heads


class _HfRope(msgspec.Struct):
    """`rope_scaling` before transformers 5, `rope_parameters` since."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    partial_rotary_factor: float = 1.0


class _HfConfig(msgspec.Struct):
    """The keys of config.json that matter, with transformers' defaults."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: _HfRope | None = None
    rope_parameters: _HfRope | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = True
    partial_rotary_factor: float = 1.0


def config_from_hf(folder: Path) -> ModelConfig:
    """The model that `folder`/config.json describes; `ModelLoadError` says what it lacks."""
    path = folder / "config.json"
    try:
        raw = msgspec.convert(json.loads(path.read_bytes()), _HfConfig)
    except FileNotFoundError:
        raise ModelLoadError(f"{folder} has no config.json") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
    _require(path, "model_type", raw.model_type, HF_MODEL_TYPES)
    _require(path, "hidden_act", raw.hidden_act, ("silu",))
    rope = raw.rope_parameters or raw.rope_scaling or _HfRope()
    for factor in (raw.partial_rotary_factor, rope.partial_rotary_factor):
        _require(path, "partial_rotary_factor", factor, (1.0,))
    is_qwen2 = raw.model_type == "qwen2"
    window = raw.sliding_window if raw.use_sliding_window else None
    return ModelConfig(
        name=folder.name,
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_layers=raw.num_hidden_layers,
        num_heads=raw.num_attention_heads,
        num_kv_heads=raw.num_key_value_heads or raw.num_attention_heads,
        head_size=raw.head_dim or raw.hidden_size // raw.num_attention_heads,
        # Attention here is never windowed: up to the window's length that is the same thing.
        max_position=min(raw.max_position_embeddings, window or raw.max_position_embeddings),
        rms_eps=raw.rms_norm_eps,
        tied_embeddings=raw.tie_word_embeddings,
        rope=_rope_from_hf(path, rope, theta=rope.rope_theta or raw.rope_theta),
        qkv_bias=raw.attention_bias or is_qwen2,
        output_bias=raw.attention_bias and not is_qwen2,
        mlp_bias=raw.mlp_bias,
    )


def _rope_from_hf(path: Path, raw: _HfRope, *, theta: float) -> RopeConfig:
    kind = raw.rope_type or raw.type or "default"
    return RopeConfig(
        theta=theta,
        kind=_rope_kind(path, kind),
        factor=raw.factor,
        original_max_position=raw.original_max_position_embeddings,
        low_freq_factor=raw.low_freq_factor,
        high_freq_factor=raw.high_freq_factor,
        beta_fast=raw.beta_fast or 32.0,
        beta_slow=raw.beta_slow or 1.0,
        attention_factor=raw.attention_factor,
    )


def config_from_gguf(
    path: Path, metadata: dict[str, Any], *, tensors: set[str], rope_divisors: tuple[float, ...]
) -> ModelConfig:
    """The model that a GGUF file's metadata and tensor names describe."""
    arch = metadata.get("general.architecture")
    _require(path, "general.architecture", arch, GGUF_ARCHITECTURES)

    def need(key: str) -> Any:
        if (value := metadata.get(f"{arch}.{key}")) is None:
            raise ModelLoadError(f"{path}: metadata lacks {arch}.{key}")
        return value

    num_heads = int(need("attention.head_count"))
    head_size = int(
        metadata.get(f"{arch}.attention.key_length") or need("embedding_length") // num_heads
    )
    rotated = metadata.get(f"{arch}.rope.dimension_count", head_size)
    _require(path, f"{arch}.rope.dimension_count", rotated, (head_size,))
    return ModelConfig(
        name=path.stem,
        vocab_size=int(
            metadata.get(f"{arch}.vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ()))
        ),
        hidden_size=int(need("embedding_length")),
        intermediate_size=int(need("feed_forward_length")),
        num_layers=int(need("block_count")),
        num_heads=num_heads,
        num_kv_heads=int(metadata.get(f"{arch}.attention.head_count_kv") or num_heads),
        head_size=head_size,
        max_position=int(need("context_length")),
        rms_eps=float(need("attention.layer_norm_rms_epsilon")),
        tied_embeddings="output.weight" not in tensors,
        rope=_rope_from_gguf(path, metadata, arch=str(arch), divisors=rope_divisors),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
    )


def _rope_from_gguf(
    path: Path, metadata: dict[str, Any], *, arch: str, divisors: tuple[float, ...]
) -> RopeConfig:
    scaling = f"{arch}.rope.scaling"
    kind = metadata.get(f"{scaling}.type", "none")
    original = metadata.get(f"{scaling}.original_context_length")
    return RopeConfig(
        theta=float(metadata.get(f"{arch}.rope.freq_base", 10000.0)),
        kind="default" if kind == "none" else _rope_kind(path, kind),
        factor=float(metadata.get(f"{scaling}.factor", 1.0)),
        original_max_position=int(original) if original else None,
        divisors=divisors or None,
    )


def _rope_kind(path: Path, kind: str) -> RopeKind:
    for known in ROPE_KINDS:
        if kind == known:
            return known
    raise ModelLoadError(f"{path}: rope type {kind!r} is not one of {', '.join(ROPE_KINDS)}")


def _require(path: Path, key: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(map(str, allowed))
        raise ModelLoadError(f"{path}: {key} is {value!r}; supported: {choices}")
