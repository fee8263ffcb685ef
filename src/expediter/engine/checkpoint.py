"""Checkpoints: a model's tensors by Hugging Face's names, whatever file holds them."""

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from expediter.engine.architecture import ModelConfig, config_from_gguf, config_from_hf
from expediter.engine.gguf_file import GGUFFile
from expediter.engine.int4 import Int4Matrix
from expediter.errors import ModelLoadError

_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_FINGERPRINT_BYTES = 1 << 16  # from each end of each file


class Checkpoint(Protocol):
    """A model at rest."""

    config: ModelConfig
    fingerprint: str  # differs where the weights do

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The named tensor; `ModelLoadError` if it is missing, damaged or of another shape."""
        ...

    def int4(self, name: str) -> Int4Matrix | None:
        """The named matrix, which `tensor` gave, in four-bit form; None if not stored so."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """A folder with config.json and safetensors, or a GGUF file."""
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if path.is_file():
        return GGUFCheckpoint(path)
    raise ModelLoadError(f"{path or 'the model path'} is neither a folder nor a GGUF file")


class SafetensorsCheckpoint:
    """Hugging Face's folder: config.json, and one safetensors file or several with an index."""

    def __init__(self, folder: Path) -> None:
        self.config = config_from_hf(folder)
        self._files = _files_by_tensor(folder)
        shards = sorted(set(self._files.values()))
        self.fingerprint = _fingerprint([folder / "config.json", *shards])
        self._folder = folder

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The named tensor as stored."""
        if name not in self._files:
            raise ModelLoadError(f"{self._folder} has no tensor {name}")
        file = self._files[name]
        try:
            with safe_open(file, framework="pt") as shard:
                tensor: torch.Tensor = shard.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file}: {name} cannot be read: {error}") from error
        return _checked(file, name, tensor, shape)

    def int4(self, name: str) -> Int4Matrix | None:  # noqa: ARG002
        """None: these files hold floats."""
        return None


class GGUFCheckpoint:
    """One GGUF file, dequantised to float32, with llama.cpp's row order undone."""

    def __init__(self, path: Path) -> None:
        self._file = file = GGUFFile(path)
        divisors = file.load("rope_freqs.weight") if "rope_freqs.weight" in file.tensors else ()
        self.config = config_from_gguf(
            path,
            file.metadata,
            tensors=set(file.tensors),
            rope_divisors=tuple(map(float, divisors)),
        )
        self.fingerprint = _fingerprint([path])
        # llama.cpp reorders rows of Q and K so that rotated pairs are neighbours, for the
        # architecture it calls llama only.
        self._is_permuted = file.metadata["general.architecture"] == "llama"

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The named tensor in float32."""
        stored = _gguf_name(name)
        if stored not in self._file.tensors:
            raise ModelLoadError(f"{self._file.path} has no tensor {stored}")
        tensor = torch.from_numpy(self._file.load(stored))
        tensor = _checked(self._file.path, stored, tensor, shape)
        return _pairs_to_halves(tensor, self.config.head_size) if self._permutes(name) else tensor

    def int4(self, name: str) -> Int4Matrix | None:
        """The named matrix as its codes, if it is stored in Q4_0 or Q4_1."""
        matrix = self._file.load_int4(_gguf_name(name))
        if matrix is None or not self._permutes(name):
            return matrix
        rows = torch.arange(len(matrix.codes))
        return matrix.reordered(_pairs_to_halves(rows, self.config.head_size))

    def _permutes(self, name: str) -> bool:
        return self._is_permuted and (".q_proj." in name or ".k_proj." in name)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_TOP:
        return f"{_GGUF_TOP[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_LAYER[part]}.{kind}"


def _pairs_to_halves(rows: torch.Tensor, head_size: int) -> torch.Tensor:
    """Undo llama.cpp's permutation: row 2i + j of a head goes to row j * half + i."""
    by_pair = rows.view(-1, head_size // 2, 2, *rows.shape[1:])
    return by_pair.transpose(1, 2).reshape(rows.shape)


def _files_by_tensor(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {name: folder / file for name, file in _weight_map(index).items()}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelLoadError(f"{folder} has no *.safetensors file")
    found: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as shard:
                found.update(dict.fromkeys(shard.keys(), file))
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file}: truncated or damaged: {error}") from error
    return found


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map: Any = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{index} has no valid weight_map: {error!r}") from error
    return dict(weight_map)


def _checked(file: Path, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise ModelLoadError(
            f"{file}: {name} has shape {tuple(tensor.shape)}; its config asks for {shape}"
        )
    if not tensor.is_floating_point():
        raise ModelLoadError(
            f"{file}: {name} is stored as {tensor.dtype}; float types only (quantised: use GGUF)"
        )
    return tensor


def _fingerprint(files: list[Path]) -> str:
    """A hash of every file's size, head and tail: cheap, and no two trainings share it."""
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                digest.update(f"{path.name}:{size}:".encode())
                for start in (0, max(0, size - _FINGERPRINT_BYTES)):
                    file.seek(start)
                    digest.update(file.read(_FINGERPRINT_BYTES))
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
    return digest.hexdigest()[:32]
