"""A worker's hand-over from its settings: the ways to its pool, and the terms."""

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from expediter.config import WorkerConfig
from expediter.errors import ConfigError, TransferError
from expediter.tokenizer import Tokenizer
from expediter.transfer.layout import KVIdentity
from expediter.transfer.messages import EngineId
from expediter.transfer.transports import transports
from expediter.worker.handover.live import LiveHandover
from expediter.worker.handover.opening import open_handover
from expediter.worker.handover.pools import Pools
from expediter.worker.handover.terms import Terms

if TYPE_CHECKING:
    from expediter.engine.executor import TorchExecutor


@asynccontextmanager
async def build_handover(
    config: WorkerConfig, executor: "TorchExecutor", *, tokenizer: Tokenizer
) -> AsyncIterator[LiveHandover | None]:
    """Hand-overs of the executor's pools; None if it moves no KV, by its settings or its device."""
    if not (config.transfer.enabled and executor.pools):
        yield None
        return
    pools = _pools(config, executor, tokenizer=tokenizer)
    try:
        async with open_handover(
            terms(config),
            pools=pools,
            clock=time.monotonic,
            wall_clock=time.time,
            watch_layers=executor.watch_layers,
        ) as handover:
            yield handover
    finally:
        await pools.close()


async def start_handover(handover: LiveHandover) -> None:
    """Listen; ConfigError if that cannot be."""
    try:
        await handover.start()
    except OSError as error:
        where = f"{handover.terms.host}:{handover.terms.port}"
        raise ConfigError(
            f"cannot listen on {where} (worker.transfer.port): {error.strerror or error}"
        ) from None


def terms(config: WorkerConfig) -> Terms:
    """What the settings say of hand-overs; the engine's id is new with every process."""
    transfer = config.transfer
    return Terms(
        engine_id=EngineId(f"{config.worker_id}-{uuid.uuid4().hex}"),
        host=config.host,
        port=transfer.port,
        advertised_host=transfer.advertised_host,
        lease_seconds=transfer.lease_seconds,
        patience_seconds=transfer.patience_seconds,
        role=config.role,
    )


def _pools(config: WorkerConfig, executor: "TorchExecutor", *, tokenizer: Tokenizer) -> Pools:
    """The pools of all ranks. This process has them all mapped, and serves and fills them all."""
    namespace, transfer = executor.namespace, config.transfer
    identity = KVIdentity(
        model=namespace.model,
        revision=namespace.revision,
        tokenizer=tokenizer.fingerprint,
        rope=namespace.layout,
    )
    try:
        return Pools(
            [
                transports(
                    memory,
                    replace(layout, identity=identity),
                    kinds=transfer.transports,
                    host=transfer.advertised_host or config.host,
                )
                for memory, layout in executor.pools
            ]
        )
    except TransferError as error:
        raise ConfigError(f"worker.transfer.transports: {error}") from error
