"""A worker from its settings: a model, its cache, its scheduler, its server.

The engine is imported where a worker is built, so that a gateway runs without torch.
"""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from msgspec.structs import replace

from expediter.assemble.descriptors import raise_descriptor_limit
from expediter.assemble.handover import build_handover, start_handover
from expediter.config import WorkerConfig, cache_dir
from expediter.engine import default_model
from expediter.errors import EngineLost
from expediter.fleet.plan import require_free_port
from expediter.kvcache.manager import KVCacheManager
from expediter.scheduling.scheduler import Scheduler
from expediter.tokenizer import Tokenizer, load_tokenizer
from expediter.worker.handover.live import LiveHandover
from expediter.worker.prompts import ServedModel
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.server import create_app, listen, serve
from expediter.worker.worker import Worker

if TYPE_CHECKING:
    from expediter.engine.executor import TorchExecutor


def run_worker(config: WorkerConfig, *, environ: Mapping[str, str]) -> None:
    """Load a model and serve it until SIGINT or SIGTERM."""
    raise_descriptor_limit()
    require_free_port(config.host, config.port)  # before minutes of loading
    config = with_model(config, environ=environ)
    uvloop.run(_serve_worker(config))


def fetch_model(*, environ: Mapping[str, str]) -> Path:
    """The default model's file, fetched unless it is there."""
    return default_model.default_model(cache_dir(environ))


def with_model(config: WorkerConfig, *, environ: Mapping[str, str]) -> WorkerConfig:
    """`config` with a model and its name: the default model if it names none."""
    model, name = config.engine.model, config.served_model_name
    if not model:
        model = str(fetch_model(environ=environ))
        name = name or default_model.NAME
    return replace(
        config,
        engine=replace(config.engine, model=model),
        served_model_name=name or _name(Path(model)),
    )


def _name(model: Path) -> str:
    """What clients call a model that has no other name."""
    return model.stem if model.suffix == ".gguf" else model.name


async def _serve_worker(config: WorkerConfig) -> None:
    from expediter.engine.executor import load_executor

    tokenizer = load_tokenizer(Path(config.engine.model))
    executor = load_executor(config.engine, config.kv_cache, eos_token_ids=tokenizer.eos_token_ids)
    try:
        async with build_handover(config, executor, tokenizer=tokenizer) as handover:
            await _serve_executor(config, executor, tokenizer=tokenizer, handover=handover)
    finally:
        await executor.close()


async def _serve_executor(
    config: WorkerConfig,
    executor: "TorchExecutor",
    *,
    tokenizer: Tokenizer,
    handover: LiveHandover | None,
) -> None:
    publisher = build_publisher(config)
    scheduler = Scheduler(
        config.scheduler,
        kv_cache=KVCacheManager(
            config.kv_cache,
            num_blocks=executor.num_blocks,
            namespace=dataclasses.replace(executor.namespace, tokenizer=tokenizer.fingerprint),
        ),
        clock=time.monotonic,
        max_model_len=executor.spec.max_model_len,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    publish = publisher.publish if publisher is not None else None
    worker = Worker(scheduler=scheduler, executor=executor, publish=publish, handover=handover)
    loop = asyncio.get_running_loop()
    executor.on_loss(lambda failure: _tell(loop, worker, failure))
    if handover is not None:
        await start_handover(handover)
    model = ServedModel(
        name=config.served_model_name or executor.spec.name,
        tokenizer=tokenizer,
        vocab_size=executor.vocab_size,
        max_model_len=executor.spec.max_model_len,
    )
    await serve(
        create_app(worker, config=config, model=model, publisher=publisher, handover=handover),
        listener=listen(config),
        worker=worker,
        publisher=publisher,
        shutdown_seconds=config.shutdown_seconds,
    )


def _tell(loop: asyncio.AbstractEventLoop, worker: Worker, failure: EngineLost) -> None:
    """In any thread: the worker has no engine any more."""
    loop.call_soon_threadsafe(worker.lose_engine, failure)


def build_publisher(config: WorkerConfig) -> KVEventPublisher | None:
    """Where KV events go, if they go anywhere."""
    if config.kv_events is None:
        return None
    return KVEventPublisher(config.kv_events, replay_endpoint=config.kv_replay)
