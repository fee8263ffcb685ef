"""Runs a worker's steps on a real model.

The forward pass runs in one thread of its own, so the event loop keeps serving; steps never
overlap. What lasts of memory is fixed at load: the weights and the KV pool. A model that is split
over ranks runs in as many processes (`ranks.py`), of which this is rank 0: the only one that knows
requests, samples, and answers.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch

from expediter.config import EngineConfig, KVCacheConfig
from expediter.engine.collectives import Alone
from expediter.engine.loading import ModelPart, ModelPlan, load_part, num_threads, plan_model
from expediter.engine.ranks import LossListener, Ranks
from expediter.engine.sampler import Sampler
from expediter.engine.shard import Shard
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.transfer.layout import KVLayout
from expediter.transfer.memory import PoolMemory


class TorchExecutor:
    """A model, its KV pool and its sampler; `spec` and `num_blocks` size the scheduler's cache."""

    def __init__(
        self,
        plan: ModelPlan,
        part: ModelPart,
        *,
        sampler: Sampler,
        ranks: Ranks | None,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.spec = plan.spec
        self.namespace = plan.namespace
        self.layout = plan.layout
        self.num_blocks = plan.layout.num_blocks
        self.vocab_size = part.model.vocab_size
        self.device = plan.device
        self.dtype = plan.dtype
        self._part = part
        self._sampler = sampler
        self._ranks = ranks
        self._thread = thread
        self._layer_listener: Callable[[int], None] | None = None

    @property
    def pools(self) -> list[tuple[PoolMemory, KVLayout]]:
        """Each rank's KV, as others may map it; empty on a GPU and where memory is not shared."""
        memory = self._part.store.memory
        if memory is None:
            return []
        memories = [memory, *(self._ranks.memories if self._ranks is not None else ())]
        return [(each, replace(self.layout, tp_rank=rank)) for rank, each in enumerate(memories)]

    def watch_layers(self, listener: Callable[[int], None] | None) -> None:
        """From the next step on, `listener` hears in how many layers a step's KV is written.

        It is called in the model's thread: after each layer on a CPU, after the last on a GPU,
        which runs behind the thread that feeds it.
        """
        self._layer_listener = listener

    def on_loss(self, listener: LossListener) -> None:
        """`listener` hears, in any thread, if the engine can run no more steps, now or later."""
        if self._ranks is not None:
            self._ranks.on_loss(listener)

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        """One forward pass over the chunks, and the tokens sampled from it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._step, output)

    async def close(self) -> None:
        """Wait for a step under way, then release the KV pool, the other ranks and the thread."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
        self._part.store.close()

    @torch.inference_mode()
    def _step(self, output: SchedulerOutput) -> ModelOutput:
        listener = self._layer_listener
        is_cpu = self.device.type == "cpu"
        with nullcontext() if self._ranks is None else self._ranks.step(output.chunks):
            batch, logits = self._part.forward(output.chunks, on_layer=listener if is_cpu else None)
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
    threads = num_threads(config)
    prepare = partial(torch.set_num_threads, threads) if threads else None
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
    plan = plan_model(config, kv, shard=Shard(rank=0, size=config.tensor_parallel))
    part, ranks = _load_ranks(config, kv, plan)
    vocab_size = plan.checkpoint.config.vocab_size
    return TorchExecutor(
        plan,
        part,
        sampler=Sampler(vocab_size=vocab_size, eos_token_ids=eos_token_ids, seed=config.seed),
        ranks=ranks,
        thread=thread,
    )


def _load_ranks(
    config: EngineConfig, kv: KVCacheConfig, plan: ModelPlan
) -> tuple[ModelPart, Ranks | None]:
    """Rank 0's part, and the other ranks if there are any, each with its own."""
    if config.tensor_parallel == 1:
        return load_part(plan, connect=lambda _: Alone()), None
    ranks = Ranks(config, kv)
    join = partial(ranks.connect, device=plan.device, pool_bytes=plan.layout.num_bytes)
    try:
        return load_part(plan, connect=lambda _: join()), ranks
    except BaseException:
        ranks.close()
        raise
