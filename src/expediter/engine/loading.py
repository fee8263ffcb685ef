"""From settings to a model that is ready for steps, or to one rank's part of it.

First a plan: everything that is known of the model before its weights are read. What is wrong with
the settings shows there.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from expediter.config import EngineConfig, KVCacheConfig
from expediter.engine.architecture import ModelConfig
from expediter.engine.batch import BatchBuilder, ForwardBatch
from expediter.engine.checkpoint import Checkpoint, open_checkpoint
from expediter.engine.collectives import Collectives
from expediter.engine.kernels.choice import make_kernels
from expediter.engine.kv_store import KVStore, blocks_that_fit
from expediter.engine.model import LlamaModel
from expediter.engine.rope import Rope, longest_context
from expediter.engine.shard import WHOLE, Shard, check_size
from expediter.engine.weights import WeightLoader
from expediter.errors import ConfigError
from expediter.kvcache.hashing import CacheNamespace
from expediter.model_spec import DTYPE_BYTES, ModelSpec
from expediter.scheduling.output import ScheduledChunk
from expediter.transfer.layout import KVLayout

logger = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What a rank is to load. `layout` is its own pool's; spec and namespace are the model's."""

    checkpoint: Checkpoint
    shard: Shard
    device: torch.device
    dtype: torch.dtype
    layout: KVLayout
    spec: ModelSpec
    namespace: CacheNamespace


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """What a rank has: its part of the model, and its KV pool."""

    model: LlamaModel
    store: KVStore
    builder: BatchBuilder

    def forward(
        self,
        chunks: Sequence[ScheduledChunk],
        *,
        on_layer: Callable[[int], None] | None = None,
    ) -> tuple[ForwardBatch, torch.Tensor]:
        """A step's tensors, and the logits of those of its rows that sample."""
        batch = self.builder.build(chunks)
        return batch, self.model.forward(batch, self.store, on_layer=on_layer)


def plan_model(config: EngineConfig, kv: KVCacheConfig, *, shard: Shard) -> ModelPlan:
    """What `config` asks for; `ModelLoadError` or `ConfigError` say what is wrong with it."""
    checkpoint = open_checkpoint(Path(config.model))
    model = checkpoint.config
    check_size(model, shard.size)
    device = _device(config.device, shard)
    dtype_name = fastest_dtype(device) if config.dtype == "auto" else config.dtype
    max_model_len = _max_model_len(model, config.max_model_len)
    return ModelPlan(
        checkpoint=checkpoint,
        shard=shard,
        device=device,
        dtype=_DTYPES[dtype_name],
        layout=_layout(model, kv, dtype_name=dtype_name, shard=shard),
        spec=_spec(model, dtype_name=dtype_name, max_model_len=max_model_len),
        namespace=_namespace(checkpoint, dtype_name=dtype_name, max_model_len=max_model_len),
    )


def load_part(plan: ModelPlan, *, connect: Callable[[KVStore], Collectives]) -> ModelPart:
    """Read the weights and make the pool; `connect` is called when this rank has both."""
    model, device, dtype = plan.checkpoint.config, plan.device, plan.dtype
    own = plan.shard.config(model)
    kernels = make_kernels(own, plan.layout, dtype=dtype, device=device)
    loader = WeightLoader(
        plan.checkpoint,
        dtype=dtype,
        device=device,
        shard=plan.shard,
        make_int4=kernels.make_int4,
    )
    weights = loader.load()
    store = KVStore(plan.layout, dtype=dtype, device=device)
    logger.info("%s in %s, %d KV blocks", model.name, plan.spec.dtype, plan.layout.num_blocks)
    return ModelPart(
        model=LlamaModel(
            own,
            weights=weights,
            operations=kernels.operations,
            rope=Rope(model, max_model_len=plan.spec.max_model_len, device=device),
            ranks=connect(store),
        ),
        store=store,
        builder=BatchBuilder(plan.layout, dtype=dtype, device=device, attention=kernels.attention),
    )


def num_threads(config: EngineConfig) -> int | None:
    """Threads of one rank; None leaves it to torch, which takes the whole machine."""
    if config.num_threads is None and config.tensor_parallel > 1:
        return max(1, len(os.sched_getaffinity(0)) // config.tensor_parallel)
    return config.num_threads


def fastest_dtype(device: torch.device) -> str:
    """16 bits where the processor multiplies them natively, else float32."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    capabilities = torch.cpu.get_capabilities()
    native = ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16")
    return "bfloat16" if any(capabilities.get(name) for name in native) else "float32"


def _device(name: str, shard: Shard) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ConfigError("engine.device is cuda, and torch finds no CUDA device; use cpu or auto")
    if shard.size > torch.cuda.device_count():
        raise ConfigError(
            f"engine.tensor-parallel is {shard.size}; torch finds "
            f"{torch.cuda.device_count()} CUDA devices, and each rank needs one"
        )
    return torch.device(name, shard.rank) if shard.size > 1 else torch.device(name)


def _max_model_len(config: ModelConfig, wanted: int | None) -> int:
    limit = longest_context(config)
    if wanted is not None and wanted > limit:
        raise ConfigError(f"engine.max-model-len is {wanted}; {config.name} allows up to {limit}")
    return wanted or config.max_position


def _layout(config: ModelConfig, kv: KVCacheConfig, *, dtype_name: str, shard: Shard) -> KVLayout:
    """A rank's pool; the capacity is that of all ranks together, so a split changes no count."""

    def layout(num_blocks: int, of: Shard) -> KVLayout:
        return KVLayout(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads // of.size,
            num_blocks=num_blocks,
            block_size=kv.block_size,
            head_size=config.head_size,
            dtype=dtype_name,
            element_bytes=DTYPE_BYTES[dtype_name],
            tp_size=of.size,
            tp_rank=of.rank,
        )

    num_blocks = kv.num_blocks or blocks_that_fit(layout(1, WHOLE), kv.capacity_bytes)
    return layout(num_blocks, shard)


def _spec(config: ModelConfig, *, dtype_name: str, max_model_len: int) -> ModelSpec:
    return ModelSpec(
        name=config.name,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        dtype=dtype_name,
        max_model_len=max_model_len,
    )


def _namespace(checkpoint: Checkpoint, *, dtype_name: str, max_model_len: int) -> CacheNamespace:
    """What makes this model's KV what it is; the tokenizer is the assembler's to add."""
    rope = checkpoint.config.rope
    # Only here does the longest text allowed change the keys of a short one.
    stretch = f",ntk={max_model_len}" if rope.kind == "dynamic" else ""
    return CacheNamespace(
        model=checkpoint.config.name,
        revision=checkpoint.fingerprint,
        dtype=dtype_name,
        layout=f"block,layer,kv,head,slot,element{stretch}",
    )
