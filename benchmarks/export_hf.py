"""Write a Hugging Face folder from a GGUF file, for rivals that read nothing else.

    python benchmarks/export_hf.py MODEL.gguf FOLDER

Weights are dequantised to bfloat16, and llama.cpp's order of Q and K rows is undone.
"""

import argparse
import json
from pathlib import Path

from safetensors.torch import save_file

from expediter.engine.architecture import ModelConfig
from expediter.engine.checkpoint import GGUFCheckpoint
from expediter.tokenizer.loading import load_tokenizer, save_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    export(arguments.gguf, arguments.folder)


def export(gguf_path: Path, folder: Path) -> None:
    """Write the configuration, the weights and the tokenizer."""
    checkpoint = GGUFCheckpoint(gguf_path)
    config = checkpoint.config
    tensors = {
        name: checkpoint.tensor(name, shape).bfloat16().contiguous()
        for name, shape in tensor_shapes(config).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(config), indent=2))
    save_tokenizer(load_tokenizer(gguf_path), folder)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Llama without biases, by Hugging Face's names."""
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (width,),
            f"{prefix}.post_attention_layernorm.weight": (width,),
            f"{prefix}.self_attn.q_proj.weight": (queries, width),
            f"{prefix}.self_attn.k_proj.weight": (keys, width),
            f"{prefix}.self_attn.v_proj.weight": (keys, width),
            f"{prefix}.self_attn.o_proj.weight": (width, queries),
            f"{prefix}.mlp.gate_proj.weight": (inner, width),
            f"{prefix}.mlp.up_proj.weight": (inner, width),
            f"{prefix}.mlp.down_proj.weight": (width, inner),
        }
    return shapes


def hf_config(config: ModelConfig) -> dict[str, object]:
    """config.json of a Llama with plain rotary positions."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


if __name__ == "__main__":
    main()
