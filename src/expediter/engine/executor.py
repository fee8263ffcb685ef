"""Runs a worker's steps on a real model.

The forward pass runs in one thread of its own, so the event loop keeps serving; steps never
overlap. What lasts of memory is fixed at load: the weights and the KV pool.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from expediter.config import EngineConfig, KVCacheConfig
from expediter.engine.architecture import ModelConfig
from expediter.engine.batch import BatchBuilder
from expediter.engine.checkpoint import Checkpoint, open_checkpoint
from expediter.engine.kv_store import KVStore, blocks_that_fit
from expediter.engine.model import LlamaModel
from expediter.engine.rope import Rope, longest_context
from expediter.engine.sampler import Sampler
from expediter.engine.weights import WeightLoader
from expediter.errors import ConfigError
from expediter.kvcache.hashing import CacheNamespace
from expediter.model_spec import DTYPE_BYTES, ModelSpec
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.transfer.layout import KVLayout

logger = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class TorchExecutor:
    """A model, its KV pool and its sampler; `spec` and `num_blocks` size the scheduler's cache."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        store: KVStore,
        sampler: Sampler,
        spec: ModelSpec,
        namespace: CacheNamespace,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.spec = spec
        self.namespace = namespace
        self.layout = store.layout
        self.memory = store.memory
        self.num_blocks = store.layout.num_blocks
        self.vocab_size = model.vocab_size
        self.device = model.device
        self.dtype = model.dtype
        self._model = model
        self._store = store
        self._sampler = sampler
        self._builder = BatchBuilder(store.layout, dtype=model.dtype, device=model.device)
        self._thread = thread
        self._layer_listener: Callable[[int], None] | None = None

    def watch_layers(self, listener: Callable[[int], None] | None) -> None:
        """From the next step on, `listener` hears in how many layers a step's KV is written.

        It is called in the model's thread: after each layer on a CPU, after the last on a GPU,
        which runs behind the thread that feeds it.
        """
        self._layer_listener = listener

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        """One forward pass over the chunks, and the tokens sampled from it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._step, output)

    async def close(self) -> None:
        """Wait for a step under way, then release the KV pool and the thread."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()

    @torch.inference_mode()
    def _step(self, output: SchedulerOutput) -> ModelOutput:
        batch = self._builder.build(output.chunks)
        listener = self._layer_listener
        is_cpu = self.device.type == "cpu"
        logits = self._model.forward(batch, self._store, on_layer=listener if is_cpu else None)
        if listener is not None and not is_cpu:
            torch.cuda.synchronize(self.device)
            listener(self.layout.num_layers)
        tokens = self._sampler.sample(logits, batch.sampling)
        ids = (chunk.request_id for chunk in batch.sampling)
        return ModelOutput(tokens={id_: (token,) for id_, token in zip(ids, tokens, strict=True)})


def load_executor(
    config: EngineConfig, kv: KVCacheConfig, *, eos_token_ids: frozenset[int] = frozenset()
) -> TorchExecutor:
    """Read a model and make it ready; `ModelLoadError` or `ConfigError` say what is wrong.

    `eos_token_ids` are what the sampler forbids while a request owes `min_tokens`.
    """
    # One thread asks torch for everything, loading included: OpenMP gives every asking thread
    # a team of its own, and with more teams than cores it puts them to sleep between products.
    prepare = partial(torch.set_num_threads, config.num_threads) if config.num_threads else None
    thread = ThreadPoolExecutor(1, thread_name_prefix="model", initializer=prepare)
    try:
        return thread.submit(_load, config, kv, eos_token_ids, thread).result()
    except BaseException:
        thread.shutdown()
        raise


@torch.inference_mode()
def _load(
    config: EngineConfig,
    kv: KVCacheConfig,
    eos_token_ids: frozenset[int],
    thread: ThreadPoolExecutor,
) -> TorchExecutor:
    device = _device(config.device)
    dtype_name = fastest_dtype(device) if config.dtype == "auto" else config.dtype
    dtype = _DTYPES[dtype_name]
    checkpoint = open_checkpoint(Path(config.model))
    model = checkpoint.config
    max_model_len = _max_model_len(model, config.max_model_len)
    layout = _layout(model, kv, dtype_name=dtype_name)
    rope = Rope(model, max_model_len=max_model_len, device=device)
    weights = WeightLoader(checkpoint, dtype=dtype, device=device).load()
    logger.info("%s in %s, %d KV blocks", model.name, dtype_name, layout.num_blocks)
    return TorchExecutor(
        LlamaModel(model, weights=weights, rope=rope),
        store=KVStore(layout, dtype=dtype, device=device),
        sampler=Sampler(vocab_size=model.vocab_size, eos_token_ids=eos_token_ids, seed=config.seed),
        spec=_spec(model, dtype_name=dtype_name, max_model_len=max_model_len),
        namespace=_namespace(checkpoint, dtype_name=dtype_name, max_model_len=max_model_len),
        thread=thread,
    )


def fastest_dtype(device: torch.device) -> str:
    """16 bits where the processor multiplies them natively, else float32."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    capabilities = torch.cpu.get_capabilities()
    native = ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16")
    return "bfloat16" if any(capabilities.get(name) for name in native) else "float32"


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device is cuda, and torch finds no CUDA device; use cpu or auto")
    return torch.device(name)


def _max_model_len(config: ModelConfig, wanted: int | None) -> int:
    limit = longest_context(config)
    if wanted is not None and wanted > limit:
        raise ConfigError(f"engine.max-model-len is {wanted}; {config.name} allows up to {limit}")
    return wanted or config.max_position


def _layout(config: ModelConfig, kv: KVCacheConfig, *, dtype_name: str) -> KVLayout:
    def layout(num_blocks: int) -> KVLayout:
        return KVLayout(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            num_blocks=num_blocks,
            block_size=kv.block_size,
            head_size=config.head_size,
            dtype=dtype_name,
            element_bytes=DTYPE_BYTES[dtype_name],
        )

    return layout(kv.num_blocks or blocks_that_fit(layout(1), kv.capacity_bytes))


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
        layout=f"layer,kv,head,block,slot,element{stretch}",
    )
