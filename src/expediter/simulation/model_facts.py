"""What a roofline needs to know of a model, read from the `config.json` of its repository.

Parameters are counted from the shape of a dense decoder as Llama's: per layer the query, key,
value and output projections and three matrices of the gated MLP; besides them the embedding, and
the output head unless it is tied. Norms and biases are too few to matter.
"""

from pathlib import Path
from typing import Any

import msgspec

from expediter.errors import ConfigError
from expediter.model_spec import DTYPE_BYTES, ModelSpec
from expediter.simulation.roofline import ModelFacts

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


class _Config(msgspec.Struct, frozen=True):
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 8192
    torch_dtype: str | None = None
    dtype: str | None = None


def load_model_facts(path: Path) -> ModelFacts:
    """The facts in a `config.json`, or in the one of a folder; ConfigError if they are not there.

    Weights and KV are taken to be of the dtype it names, float16 if none is named.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = file.read_bytes()
        given: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        config = msgspec.json.decode(raw, type=_Config)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} does not describe a dense decoder: {error}") from None
    if any((given.get(key) or 0) > 1 for key in EXPERTS):
        raise ConfigError(f"{file} is a mixture of experts; only dense models are known here")
    return _facts(config, name=file.parent.resolve().name)


def _facts(config: _Config, *, name: str) -> ModelFacts:
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_size = config.head_dim or hidden // heads
    kv_heads = config.num_key_value_heads or heads
    attention = 2 * hidden * (heads + kv_heads) * head_size
    mlp = 3 * hidden * config.intermediate_size
    embedding = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    dtype = config.torch_dtype or config.dtype or "float16"
    return ModelFacts(
        spec=ModelSpec(
            name=name,
            num_layers=config.num_hidden_layers,
            num_kv_heads=kv_heads,
            head_size=head_size,
            dtype=dtype if dtype in DTYPE_BYTES else "float16",
            max_model_len=config.max_position_embeddings,
        ),
        num_params=config.num_hidden_layers * (attention + mlp) + embedding,
        num_heads=heads,
    )
