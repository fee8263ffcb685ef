"""Models whose shapes the compiled functions serve, and these functions."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny_models import Tiny, write_gguf

from expediter.engine.architecture import ModelConfig
from expediter.engine.checkpoint import open_checkpoint
from expediter.engine.kernels import choice
from expediter.engine.kernels.choice import Kernels, make_kernels
from expediter.transfer.layout import KVLayout

CPU = torch.device("cpu")
BF16 = torch.bfloat16
NUM_LAYERS, NUM_BLOCKS = 2, 64
SHAPES = {
    "grouped heads": Tiny(head_size=32, num_heads=6, num_kv_heads=2),
    "one KV head, more heads than registers": Tiny(head_size=64, num_heads=9, num_kv_heads=1),
    "wide heads": Tiny(head_size=128, num_heads=2, num_kv_heads=2),
}
Shapes = dict[str, tuple[ModelConfig, Kernels]]
needs_kernels = pytest.mark.skipif(
    not (importlib.util.find_spec("llvmlite") and choice.processor_serves(BF16, CPU)),
    reason="no llvmlite, or a processor without AVX-512's bfloat16 product",
)


def config_of(tiny: Tiny, folder: Path) -> ModelConfig:
    return open_checkpoint(write_gguf(folder / "tiny.gguf", tiny, tiny.tensors())).config


def layout_of(config: ModelConfig, *, block_size: int = 16) -> KVLayout:
    return KVLayout(
        num_layers=NUM_LAYERS,
        num_kv_heads=config.num_kv_heads,
        num_blocks=NUM_BLOCKS,
        block_size=block_size,
        head_size=config.head_size,
        dtype="bfloat16",
        element_bytes=2,
    )


def make(config: ModelConfig, *, block_size: int = 16, dtype: torch.dtype = BF16) -> Kernels:
    return make_kernels(config, layout_of(config, block_size=block_size), dtype=dtype, device=CPU)


def block_size_of(name: str) -> int:
    return 16 * (1 + list(SHAPES).index(name))


def all_shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    """Compiled for each shape, and for blocks of another size each."""
    found = {}
    for name, tiny in SHAPES.items():
        config = config_of(tiny, tmp_path_factory.mktemp("shape"))
        found[name] = (config, make(config, block_size=block_size_of(name)))
    return found
