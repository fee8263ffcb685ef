"""Models by name, or by the config.json that comes with their weights.

Parameters are counted from the shapes in config.json, so they are those of a plain decoder:
attention, gated or plain feed-forward (all experts of a mixture), embeddings, output head.
"""

import json
from dataclasses import replace
from pathlib import Path

import msgspec

from expediter.errors import ConfigError
from expediter.model_spec import ModelSpec
from expediter.simulation.roofline import MODELS, ModelFacts

OPT = "Table 1 of the OPT paper, arXiv 2205.01068"


def _facts(name: str, *, params: float, layers: int, heads: int, kv_heads: int) -> ModelFacts:
    spec = ModelSpec(name=name, num_layers=layers, num_kv_heads=kv_heads, head_size=128)
    return ModelFacts(spec=spec, num_params=params, num_heads=heads)


def _opt(name: str, *, params: float, layers: int, heads: int) -> ModelFacts:
    facts = _facts(name, params=params, layers=layers, heads=heads, kv_heads=heads)
    return replace(facts, source=OPT)


MORE_MODELS = {
    facts.spec.name: facts
    for facts in (
        _facts("llama2-7b", params=6.74e9, layers=32, heads=32, kv_heads=32),
        _facts("mistral-7b", params=7.24e9, layers=32, heads=32, kv_heads=8),
        _facts("qwen2.5-72b", params=72.7e9, layers=80, heads=64, kv_heads=8),
        _facts("llama3.1-405b", params=405.9e9, layers=126, heads=128, kv_heads=8),
        _opt("opt-13b", params=13e9, layers=40, heads=40),
        _opt("opt-66b", params=66e9, layers=64, heads=72),
        _opt("opt-175b", params=175e9, layers=96, heads=96),
        ModelFacts(
            # config.json of DeepSeek-V3: kv_lora_rank 512 + qk_rope_head_dim 64.
            spec=ModelSpec(
                name="deepseek-v3",
                num_layers=61,
                num_kv_heads=1,
                head_size=128,
                latent_size=576,
            ),
            num_params=671e9,
            num_heads=128,
        ),
    )
}


class _Config(msgspec.Struct):
    """The keys of config.json that decide sizes."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int | None = None
    ffn_dim: int | None = None  # OPT's name for it
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = False
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int = 0
    num_local_experts: int = 0  # Mixtral
    num_experts: int = 0  # Qwen
    n_routed_experts: int = 0  # DeepSeek
    moe_intermediate_size: int | None = None


def model_names() -> list[str]:
    """Every built-in model."""
    return [*MODELS, *MORE_MODELS]


def named_model(name: str) -> ModelFacts:
    """A built-in model, or the one that a folder with a config.json, or that file, describes.

    Raises ConfigError that says which names there are, or what the file lacks.
    """
    built_in = MODELS.get(name) or MORE_MODELS.get(name)
    if built_in is not None:
        return built_in
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _from_config(path)
    raise ConfigError(
        f"no model is called {name!r}, and there is no such file; there are "
        f"{', '.join(model_names())}, and any folder with a config.json"
    )


def _from_config(path: Path) -> ModelFacts:
    try:
        config = msgspec.convert(json.loads(path.read_bytes()), _Config)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    heads = config.num_attention_heads
    latent = config.kv_lora_rank + config.qk_rope_head_dim if config.kv_lora_rank else 0
    spec = ModelSpec(
        name=path.parent.name or str(path),
        num_layers=config.num_hidden_layers,
        num_kv_heads=1 if latent else config.num_key_value_heads or heads,
        head_size=config.head_dim or config.hidden_size // heads,
        max_model_len=config.max_position_embeddings,
        latent_size=latent,
    )
    return ModelFacts(spec=spec, num_params=_num_params(config, spec), num_heads=heads)


def _num_params(config: _Config, spec: ModelSpec) -> int:
    """Weights in all matrices; biases and norms are too few to matter."""
    hidden = config.hidden_size
    queries = 2 * config.num_attention_heads * spec.head_size * hidden  # and the output
    keys = 2 * spec.num_kv_heads * spec.head_size * hidden
    if spec.latent_size:
        # Down to the latent, and up again to keys and values of every head.
        up = 2 * config.num_attention_heads * spec.head_size
        keys = spec.latent_size * hidden + (config.kv_lora_rank or 0) * up
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    return config.num_hidden_layers * (queries + keys + _feed_forward(config)) + embeddings


def _feed_forward(config: _Config) -> int:
    """One layer's feed-forward weights: three matrices an expert, two where it is not gated."""
    if config.ffn_dim is not None:
        return 2 * config.ffn_dim * config.hidden_size
    experts = config.num_local_experts or config.num_experts or config.n_routed_experts
    width = (config.moe_intermediate_size if experts else None) or config.intermediate_size
    return 3 * max(1, experts) * (width or 4 * config.hidden_size) * config.hidden_size
