"""A worker on a hash model as a process of its own: its first line is its port."""

import asyncio
import logging
import sys

import uvloop
from hash_engine import HashModel, build
from live_server import served_model

from expediter.config import KVCacheConfig, WorkerConfig
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.server import create_app, listen, serve

STEP_SECONDS = 0.005


class PacedModel(HashModel):
    """As fast as a real one, so that answers are under way when the signal comes."""

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        await asyncio.sleep(STEP_SECONDS)
        return await super().execute(output)


async def main(shutdown_seconds: float, events: str) -> None:
    config = WorkerConfig(
        port=0, shutdown_seconds=shutdown_seconds, kv_cache=KVCacheConfig(block_size=4)
    )
    publisher = KVEventPublisher(events)
    rig = build(PacedModel(), num_blocks=3000, max_model_len=10_000, publish=publisher.publish)
    model = served_model(10_000)
    app = create_app(rig.worker, config=config, model=model, publisher=publisher)
    listener = listen(config)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await serve(
        app,
        listener=listener,
        worker=rig.worker,
        publisher=publisher,
        shutdown_seconds=config.shutdown_seconds,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    uvloop.run(main(float(sys.argv[1]), sys.argv[2]))
