"""A checkpoint that cannot run is refused with a message that says what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import load
from tiny_models import Tiny, write_folder, write_gguf

from expediter.config import EngineConfig, KVCacheConfig
from expediter.engine.executor import load_executor
from expediter.errors import ConfigError, ModelLoadError

TINY = Tiny()


def folder_with(tmp_path: Path, **changes: Any) -> Path:
    """A good folder whose config.json then says otherwise."""
    folder = write_folder(tmp_path / "model", TINY, TINY.tensors())
    config = {**TINY.hf_config(), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'; supported: llama, mistral, qwen2"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: silu"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "must be a multiple"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope.*default, linear, dynamic"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_hidden_layers": 3}, r"no tensor model\.layers\.2"),
        ({"vocab_size": 97}, r"shape \(96, 64\); its config asks for \(97, 64\)"),
        ({"tie_word_embeddings": False}, r"no tensor lm_head\.weight"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(folder_with(tmp_path, **changes))


def test_a_missing_path_a_folder_without_files_and_bad_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="neither a folder nor a GGUF file"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY.hf_config()))
    with pytest.raises(ModelLoadError, match="safetensors"):
        load(tmp_path)


def test_truncated_safetensors_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: truncated or damaged"):
        load(folder)


def test_an_index_that_names_an_absent_shard_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TINY, TINY.tensors(), num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="model-00002-of-00002"):
        load(folder)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = TINY.tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.int8)
    with pytest.raises(ModelLoadError, match=f"{name} is stored as torch.int8"):
        load(write_folder(tmp_path / "model", TINY, tensors))


@pytest.mark.parametrize("kept", [3, 20, 700, -5000])
def test_a_truncated_gguf_is_refused_wherever_it_ends(tmp_path: Path, kept: int) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", TINY, TINY.tensors())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf.*(truncated|not a GGUF)"):
        load(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("GGUG, nearly")
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        load(tmp_path / "notes.txt")


def test_an_unknown_gguf_architecture_is_refused(tmp_path: Path) -> None:
    tiny = Tiny(model_type="gemma3")
    with pytest.raises(ModelLoadError, match="'gemma3'; supported: llama, qwen2"):
        load(write_gguf(tmp_path / "tiny.gguf", tiny, tiny.tensors()))


def test_a_context_longer_than_the_model_allows_is_a_config_error(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    with pytest.raises(ConfigError, match=r"max-model-len is 601; model allows up to 600"):
        load(folder, max_model_len=601)


def test_a_cache_smaller_than_a_block_is_a_config_error(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    with pytest.raises(ConfigError, match="one block of this model takes"):
        load_executor(EngineConfig(model=str(folder)), KVCacheConfig(capacity_bytes=100))
