"""Config to wired objects: the only file that names them all.

The engine is imported where a worker is built, so that a gateway runs without torch.
"""

import asyncio
import dataclasses
import gc
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

import uvloop
from msgspec.structs import asdict, replace
from rich.console import Console

from expediter.clock import Clock
from expediter.config import Config, GatewayConfig, RoutingConfig, WorkerConfig, cache_dir
from expediter.engine import default_model
from expediter.engine.architecture import config_from_hf
from expediter.errors import ConfigError
from expediter.fleet.plan import require_free_port
from expediter.fleet.up import up
from expediter.gateway.gateway import Gateway
from expediter.kvcache.manager import KVCacheManager
from expediter.routing.cache_aware import CacheAware
from expediter.routing.dynamo import DynamoKv
from expediter.routing.fleet_history import FleetHistory
from expediter.routing.gpu_cost import NAMED_COSTS
from expediter.routing.policy import LeastLoaded, Random, RoundRobin, RoutingPolicy
from expediter.routing.power_of_two import PowerOfTwo
from expediter.routing.preble import PrebleE2
from expediter.routing.sglang import SglangCacheAware
from expediter.routing.sticky import Sticky
from expediter.scheduling.scheduler import Scheduler
from expediter.settings import load_section
from expediter.tokenizer import load_tokenizer
from expediter.worker.prompts import ServedModel
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.server import create_app, listen, serve
from expediter.worker.worker import Worker

GC_THRESHOLD = 20_000  # new containers in a gateway before it looks for cycles; Python's is 700
FREED_BLOCK_BYTES = 16 * 1024 * 1024


def run_fleet(config: Config, *, environ: Mapping[str, str], console: Console) -> None:
    """Run a gateway and its workers until a signal."""
    worker = with_model(config.worker, environ=environ)
    if Path(worker.engine.model).is_dir():
        config_from_hf(Path(worker.engine.model))  # said once, before each worker would say it
    asyncio.run(up(replace(config, worker=worker), environ=environ, console=console))


def run_worker(config: WorkerConfig, *, environ: Mapping[str, str]) -> None:
    """Load a model and serve it until SIGINT or SIGTERM."""
    require_free_port(config.host, config.port)  # before minutes of loading
    config = with_model(config, environ=environ)
    uvloop.run(_serve_worker(config))


def run_gateway(config: GatewayConfig) -> None:
    """Serve the gateway until SIGINT or SIGTERM."""
    if not config.workers:
        raise ConfigError("no workers: name them with --worker URL or in [[gateway.workers]]")
    tokenizer = load_tokenizer(Path(config.tokenizer)) if config.tokenizer else None
    policy = build_policy(config.routing, clock=time.monotonic, rng=random.Random())
    uvloop.run(_serve_gateway(Gateway(config, policy=policy, tokenizer=tokenizer), config))


def run_experiment(path: Path | None, *, flags: Mapping[str, Any]) -> None:
    """Simulate what a file and `flags` describe, and print how the policies compare."""
    # Only here, because a gateway has no use for numpy.
    from expediter.simulation import command
    from expediter.simulation.settings import ExperimentConfig

    command.run(load_section(ExperimentConfig, path, flags=flags), build_policy=build_policy)


def build_policy(config: RoutingConfig, *, clock: Clock, rng: random.Random) -> RoutingPolicy:
    """The policy that `config.policy` names."""
    match config.policy:
        case "cache-aware":
            return CacheAware(
                load_weight=config.load_weight,
                max_imbalance=config.max_imbalance,
                slack_tokens=config.slack_tokens,
            )
        case "round-robin":
            return RoundRobin()
        case "random":
            return Random(rng=rng)
        case "least-loaded":
            return LeastLoaded()
        case "power-of-two":
            return PowerOfTwo(rng=rng)
        case "sticky":
            return _sticky(config)
        case "sglang":
            return SglangCacheAware(block_size=config.block_size, **asdict(config.sglang))
        case "dynamo":
            return DynamoKv(rng=rng, block_size=config.block_size, **asdict(config.dynamo))
        case "preble":
            return _preble(config, clock=clock)
        case _:
            assert_never(config.policy)


def _sticky(config: RoutingConfig) -> Sticky:
    return Sticky(
        max_imbalance=config.max_imbalance,
        block_size=config.block_size,
        **asdict(config.sticky),
    )


def _preble(config: RoutingConfig, *, clock: Clock) -> PrebleE2:
    preble = config.preble
    cost = NAMED_COSTS.get(preble.gpu_cost)
    if cost is None:
        allowed = ", ".join(NAMED_COSTS)
        raise ConfigError(
            f"gateway.routing.preble.gpu-cost is {preble.gpu_cost!r}; allowed are {allowed}"
        )
    history = FleetHistory(
        cost=cost,
        block_size=config.block_size,
        window_seconds=preble.window_seconds,
        expected_output_tokens=preble.expected_output_tokens,
        capacity_tokens=preble.capacity_tokens,
        max_blocks=preble.max_blocks,
    )
    return PrebleE2(
        history,
        clock=clock,
        rebalance_threshold=preble.rebalance_threshold,
        imbalance_ratio=preble.imbalance_ratio,
    )


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
    eos_token_ids = tokenizer.eos_token_ids
    executor = load_executor(config.engine, config.kv_cache, eos_token_ids=eos_token_ids)
    try:
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
            eos_token_ids=eos_token_ids,
        )
        publish = publisher.publish if publisher is not None else None
        worker = Worker(scheduler=scheduler, executor=executor, publish=publish)
        model = ServedModel(
            name=config.served_model_name or executor.spec.name,
            tokenizer=tokenizer,
            vocab_size=executor.vocab_size,
            max_model_len=executor.spec.max_model_len,
        )
        await serve(
            create_app(worker, config=config, model=model, publisher=publisher),
            listener=listen(config),
            worker=worker,
            publisher=publisher,
            shutdown_seconds=config.shutdown_seconds,
        )
    finally:
        await executor.close()


def build_publisher(config: WorkerConfig) -> KVEventPublisher | None:
    """Where KV events go, if they go anywhere."""
    if config.kv_events is None:
        return None
    return KVEventPublisher(config.kv_events, replay_endpoint=config.kv_replay)


async def _serve_gateway(gateway: Gateway, config: GatewayConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await gateway.start()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from None
    _settle_memory()
    try:
        await stop.wait()
    finally:
        await gateway.stop()


def _settle_memory() -> None:
    """Requests leave no reference cycles, and looking for some takes time from all of them.

    glibc gives the top of the heap back as soon as a large body is freed, and takes it again for
    the next one, page by page; not after it has freed a block that is larger.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    bytes(FREED_BLOCK_BYTES)
