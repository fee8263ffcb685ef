"""A worker on a hash model as a process of its own: its first line is its port.

It can be slow, and its KV events can get lost: `--lose 3:9` sends those batches to nobody, and on
SIGUSR1 the socket they come from is closed and opened again.
"""

import argparse
import asyncio
import logging
import signal
import sys

import uvloop
import zmq
from hash_engine import VOCAB_SIZE, HashModel, build, byte_tokenizer

from expediter.config import KVCacheConfig, WorkerConfig
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.worker.prompts import ServedModel
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.server import create_app, listen, serve

STEP_SECONDS = 0.005
MAX_MODEL_LEN = 10_000


class PacedModel(HashModel):
    """As fast as a real one, so that answers are under way when the signal comes."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self._step_seconds = step_seconds

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        await asyncio.sleep(self._step_seconds)
        return await super().execute(output)


class LossyPublisher(KVEventPublisher):
    """Keeps the batches that it loses, so that they can be replayed."""

    lost = range(0)

    def _send(self, frames: list[bytes]) -> None:
        is_lost = int.from_bytes(frames[1], "big") in self.lost
        if not (is_lost or self._pub.closed):
            super()._send(frames)

    def break_connections(self) -> None:
        self._pub.close(linger=0)
        self._bind_again()

    def _bind_again(self) -> None:
        """As soon as the address is free: a socket closes in its own time."""
        socket = self._context.socket(zmq.PUB)
        try:
            socket.bind(self.endpoint)
        except zmq.ZMQError:
            socket.close(linger=0)
            asyncio.get_running_loop().call_later(0.01, self._bind_again)
            return
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._pub = socket


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("shutdown_seconds", type=float)
    parser.add_argument("events")
    parser.add_argument("--replay")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=STEP_SECONDS)
    parser.add_argument("--num-blocks", type=int, default=3000)
    parser.add_argument("--batched-tokens", type=int, default=64)
    parser.add_argument("--lose", default="0:0", metavar="FIRST:END")
    return parser.parse_args()


async def main(given: argparse.Namespace) -> None:
    config = WorkerConfig(
        port=given.port,
        shutdown_seconds=given.shutdown_seconds,
        kv_cache=KVCacheConfig(block_size=4),
    )
    publisher = LossyPublisher(given.events, replay_endpoint=given.replay or None)
    publisher.lost = range(*map(int, given.lose.split(":")))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, publisher.break_connections)
    rig = build(
        PacedModel(given.step_seconds),
        num_blocks=given.num_blocks,
        max_model_len=MAX_MODEL_LEN,
        max_batched_tokens=given.batched_tokens,
        publish=publisher.publish,
    )
    model = ServedModel(
        name="hash",
        tokenizer=byte_tokenizer(),
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
    )
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
    uvloop.run(main(arguments()))
