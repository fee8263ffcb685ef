"""The process of one rank but the first: `python -m expediter.engine.rank`.

It loads its part of the model and then runs the steps that the worker tells it of, in order. It
samples nothing. Whatever goes wrong ends it, and the worker sees that.
"""

import logging
import os
import queue
import socket
import sys
import threading

import msgspec
import torch

from expediter.engine.collectives import Collectives, Group, find
from expediter.engine.kv_store import KVStore
from expediter.engine.loading import load_part, num_threads, plan_model
from expediter.engine.rank_wire import Channel, Loaded, RankOrder, decode_step
from expediter.engine.shard import Shard

logger = logging.getLogger(__name__)

Frames = queue.SimpleQueue[bytes]


def main() -> None:
    """Run until the worker is gone."""
    channel = Channel(socket.socket(fileno=sys.stdin.fileno()))
    first = channel.receive()
    if first is None:
        return
    order = msgspec.msgpack.decode(first, type=RankOrder)
    logging.basicConfig(
        level=order.log_level,
        format=f"%(asctime)s %(levelname)s rank {order.rank}: %(name)s: %(message)s",
    )
    frames: Frames = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, frames), daemon=True, name="worker").start()
    try:
        _run(order, channel, frames)
    except Exception:
        logger.exception("this rank cannot go on")
        _leave(1)


def _read(channel: Channel, frames: Frames) -> None:
    """In a thread of its own: the model's may be waiting for a worker that is gone."""
    while (frame := channel.receive()) is not None:
        frames.put(frame)
    _leave(0)


@torch.inference_mode()
def _run(order: RankOrder, channel: Channel, frames: Frames) -> None:
    if (threads := num_threads(order.engine)) is not None:
        torch.set_num_threads(threads)
    shard = Shard(rank=order.rank, size=order.engine.tensor_parallel)
    plan = plan_model(order.engine, order.kv_cache, shard=shard)

    def connect(store: KVStore) -> Collectives:
        path = None if store.memory is None else store.memory.path
        channel.send(msgspec.msgpack.encode(Loaded(pool_path=path)))
        frames.get()
        return Group(
            find(order.store_port),
            shard=shard,
            device=plan.device,
            timeout_seconds=order.timeout_seconds,
        )

    part = load_part(plan, connect=connect)
    while True:
        part.forward(decode_step(frames.get()))


def _leave(status: int) -> None:
    """At once: nothing here needs to be put in order, and torch's threads need not agree."""
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
