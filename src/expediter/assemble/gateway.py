"""A gateway from its settings, until a signal."""

import asyncio
import gc
import random
import signal
import time
from pathlib import Path

import uvloop

from expediter.assemble.policies import build_policy
from expediter.config import GatewayConfig
from expediter.errors import ConfigError
from expediter.gateway.gateway import Gateway
from expediter.tokenizer import load_tokenizer

GC_THRESHOLD = 20_000  # new containers in a gateway before it looks for cycles; Python's is 700
FREED_BLOCK_BYTES = 16 * 1024 * 1024


def run_gateway(config: GatewayConfig) -> None:
    """Serve the gateway until SIGINT or SIGTERM."""
    if not config.workers and config.discovery is None:
        raise ConfigError(
            "no workers: name them with --worker URL or in [[gateway.workers]], "
            "or say in [gateway.discovery] where to find them"
        )
    tokenizer = load_tokenizer(Path(config.tokenizer)) if config.tokenizer else None
    policy = build_policy(config.routing, clock=time.monotonic, rng=random.Random())
    uvloop.run(_serve_gateway(Gateway(config, policy=policy, tokenizer=tokenizer), config))


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
