"""Small random models, files that hold them, and a plain reference."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A model's shape; `extra` goes into config.json as it is."""

    model_type: str = "llama"
    vocab_size: int = 96
    hidden_size: int = 64
    intermediate_size: int = 96
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    tied: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    theta: float = 10000.0
    max_position: int = 600
    extra: dict[str, Any] = field(default_factory=dict)

    def tensors(self, seed: int = 0) -> dict[str, torch.Tensor]:
        """Random weights under Hugging Face's names."""
        random = torch.Generator().manual_seed(seed)

        def matrix(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=random) / math.sqrt(shape[-1])

        def gain() -> torch.Tensor:
            return 1 + 0.3 * torch.randn(self.hidden_size, generator=random)

        found = {
            "model.embed_tokens.weight": 4 * matrix(self.vocab_size, self.hidden_size),
            "model.norm.weight": gain(),
        }
        if not self.tied:
            found["lm_head.weight"] = 4 * matrix(self.vocab_size, self.hidden_size)
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}"
            found[f"{prefix}.input_layernorm.weight"] = gain()
            found[f"{prefix}.post_attention_layernorm.weight"] = gain()
            for name, (rows, columns, has_bias) in self._linears().items():
                found[f"{prefix}.{name}.weight"] = matrix(rows, columns)
                if has_bias:
                    found[f"{prefix}.{name}.bias"] = matrix(rows)
        return found

    def _linears(self) -> dict[str, tuple[int, int, bool]]:
        """A layer's matrices: rows, columns, and whether a bias goes with them."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = (n * self.head_size for n in (self.num_heads, self.num_kv_heads))
        return {
            "self_attn.q_proj": (queries, hidden, self.qkv_bias),
            "self_attn.k_proj": (keys, hidden, self.qkv_bias),
            "self_attn.v_proj": (keys, hidden, self.qkv_bias),
            "self_attn.o_proj": (hidden, queries, self.output_bias),
            "mlp.gate_proj": (inner, hidden, self.mlp_bias),
            "mlp.up_proj": (inner, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, inner, self.mlp_bias),
        }

    def hf_config(self) -> dict[str, Any]:
        """config.json's content."""
        return {
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_size,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.theta,
            "max_position_embeddings": self.max_position,
            "tie_word_embeddings": self.tied,
            "attention_bias": self.output_bias,
            "mlp_bias": self.mlp_bias,
            **self.extra,
        }


def write_folder(
    folder: Path, tiny: Tiny, tensors: dict[str, torch.Tensor], *, num_shards: int = 1
) -> Path:
    """A Hugging Face folder; with several shards also their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny.hf_config()))
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        mine = names[shard::num_shards]
        save_file({name: tensors[name] for name in mine}, folder / file)
        weight_map.update(dict.fromkeys(mine, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def llama_cpp_rows(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """What llama.cpp's converter does to Q and K: rotated pairs become neighbours."""
    size = tensor.shape[0] // num_heads
    halves = tensor.reshape(num_heads, 2, size // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def write_gguf(
    path: Path,
    tiny: Tiny,
    tensors: dict[str, torch.Tensor],
    *,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, float] | None = None,
    rope_divisors: torch.Tensor | None = None,
) -> Path:
    """A GGUF file; matrices are stored in `quantization`, vectors in F32."""
    arch = tiny.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(tiny.num_layers)
    writer.add_context_length(tiny.max_position)
    writer.add_embedding_length(tiny.hidden_size)
    writer.add_feed_forward_length(tiny.intermediate_size)
    writer.add_head_count(tiny.num_heads)
    writer.add_head_count_kv(tiny.num_kv_heads)
    writer.add_key_length(tiny.head_size)
    writer.add_rope_freq_base(tiny.theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"token{i}" for i in range(tiny.vocab_size)])
    for key, value in (metadata or {}).items():
        writer.add_float32(key, value)
    for name, stored in tensors.items():
        tensor = stored
        if arch == "llama" and "q_proj" in name:
            tensor = llama_cpp_rows(tensor, tiny.num_heads)
        if arch == "llama" and "k_proj" in name:
            tensor = llama_cpp_rows(tensor, tiny.num_kv_heads)
        kind = quantization if tensor.dim() > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(tensor.numpy(), kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference_logits(
    tiny: Tiny, tensors: dict[str, torch.Tensor], token_ids: Sequence[int]
) -> torch.Tensor:
    """Logits at every position: dense, uncached, one operation after the other."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ tensors[f"{name}.weight"].T
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * tensors[f"{name}.weight"]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        half = tiny.head_size // 2
        pairs = torch.complex(x[..., :half], x[..., half:])
        angles = torch.arange(len(token_ids))[:, None] * tiny.theta ** (-torch.arange(half) / half)
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([turned.real, turned.imag], -1)

    x = tensors["model.embed_tokens.weight"][torch.tensor(token_ids)]
    future = torch.full((len(token_ids), len(token_ids)), -torch.inf).triu(1)
    for layer in range(tiny.num_layers):
        at = f"model.layers.{layer}"
        y = norm(f"{at}.input_layernorm", x)
        q, k, v = (
            linear(f"{at}.self_attn.{part}_proj", y).unflatten(-1, (-1, tiny.head_size))
            for part in "qkv"
        )
        shared = tiny.num_heads // tiny.num_kv_heads
        k, v = (t.repeat_interleave(shared, 1) for t in (rotate(k), v))
        scores = torch.einsum("qhd,khd->hqk", rotate(q), k) / math.sqrt(tiny.head_size) + future
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = x + linear(f"{at}.self_attn.o_proj", attended)
        y = norm(f"{at}.post_attention_layernorm", x)
        gate = torch.nn.functional.silu(linear(f"{at}.mlp.gate_proj", y))
        x = x + linear(f"{at}.mlp.down_proj", gate * linear(f"{at}.mlp.up_proj", y))
    head = tensors["model.embed_tokens.weight" if tiny.tied else "lm_head.weight"]
    return norm("model.norm", x) @ head.T


def quantized(tensors: dict[str, torch.Tensor], kind: Any) -> dict[str, torch.Tensor]:
    """The values that matrices have after going through `kind`."""

    def through(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 1:
            return tensor
        data = gguf.quants.quantize(tensor.numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(data, kind).copy()).view(tensor.shape)

    return {name: through(tensor) for name, tensor in tensors.items()}
