"""KV events over ZeroMQ, as vLLM publishes them (vllm/distributed/kv_events.py).

A PUB socket sends `[topic, sequence number, payload]`; the payload is MessagePack
`[time, [event, ...], rank]`. Batches are numbered from 0, so a listener sees when it missed
some, and asks a ROUTER socket for all batches from a number on. Publishing never waits: for a
listener too slow to keep up batches are dropped, counted, and left to the replay.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, assert_never

import msgspec
import zmq

from expediter.clock import Clock
from expediter.errors import ConfigError
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent

logger = logging.getLogger(__name__)

MEDIUM = "GPU"  # vLLM's word for the memory that is computed on, on CPUs too
KV_CACHE_GROUP = 0
RANK = 0
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
BUFFER_BATCHES = 10_000
MAX_UNSENT_BATCHES = 10_000  # for one listener
MAX_REPLAYS = 64  # waiting at once; more are refused
BATCHES_AT_ONCE = 256  # replayed before the event loop gets a turn
LINGER_MILLISECONDS = 500


@dataclass(slots=True)
class _Replay:
    """Batches [next_seq, end_seq) are still to send to `peer`."""

    peer: bytes
    next_seq: int
    end_seq: int


class KVEventPublisher:
    """One worker's events. Both sockets bind, whatever the endpoints are.

    Raises ConfigError if they cannot. `start` needs a running event loop; `publish` does not.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay_endpoint: str | None = None,
        topic: str = "",
        buffer_batches: int = BUFFER_BATCHES,
        clock: Clock = time.time,
    ) -> None:
        self.topic = topic
        self.num_dropped_batches = 0
        self.num_batches = 0
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer: deque[bytes] = deque(maxlen=buffer_batches)  # the newest payloads
        self._replays: deque[_Replay] = deque()
        self._context = zmq.Context()
        self._router: zmq.Socket[bytes] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._pub = _bind(self._context.socket(zmq.PUB), endpoint, limit=MAX_UNSENT_BATCHES)
            # A PUB socket drops in silence; refusing first tells that somebody's queue is full.
            self._pub.setsockopt(zmq.XPUB_NODROP, 1)
            if replay_endpoint is not None:
                # Room for two whole replays: a ROUTER drops in silence what does not fit.
                limit = 2 * (buffer_batches + 1)
                router = self._context.socket(zmq.ROUTER)
                self._router = _bind(router, replay_endpoint, limit=limit)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self.endpoint = _endpoint(self._pub)
        self.replay_endpoint = _endpoint(self._router) if self._router else None

    def description(self) -> dict[str, Any]:
        """This publisher in the words of vLLM's `KVEventsConfig`."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": self._buffer.maxlen,
            "hwm": MAX_UNSENT_BATCHES,
            "max_queue_size": MAX_UNSENT_BATCHES,
            "topic": self.topic,
        }

    def start(self) -> None:
        """Answer replay requests from now on."""
        self._loop = asyncio.get_running_loop()
        if self._router is not None:
            self._loop.add_reader(self._router.fileno(), self._read_requests)
            self._loop.call_soon(self._read_requests)

    def publish(self, events: Sequence[KVCacheEvent]) -> None:
        """Send one batch; never waits."""
        batch = [self._clock(), [event_map(event) for event in events], RANK]
        payload = self._encoder.encode(batch)
        frames = [self.topic.encode(), _seq_bytes(self.num_batches), payload]
        self._buffer.append(payload)
        self.num_batches += 1
        self._send(frames)

    def close(self) -> None:
        """Hand what was published to the network, for half a second at most, and close."""
        if self._loop is not None and self._router is not None:
            self._loop.remove_reader(self._router.fileno())
        self._context.destroy(linger=LINGER_MILLISECONDS)

    def _send(self, frames: list[bytes]) -> None:
        try:
            self._pub.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            if not self.num_dropped_batches:
                logger.warning("a listener to KV events is too slow; it has to ask for a replay")
            self.num_dropped_batches += 1
            self._pub.setsockopt(zmq.XPUB_NODROP, 0)
            self._pub.send_multipart(frames, zmq.NOBLOCK)  # all but the slow ones get it
            self._pub.setsockopt(zmq.XPUB_NODROP, 1)

    def _read_requests(self) -> None:
        """Take in every request that waits: the descriptor signals a change, not a state."""
        assert self._router is not None
        while not self._router.closed:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._add_replay(frames)

    def _add_replay(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[2]) != 8 or len(self._replays) >= MAX_REPLAYS:
            logger.warning("a replay request of %d frames is not answered", len(frames))
            return
        peer, _, start = frames
        replay = _Replay(peer, int.from_bytes(start, "big"), self.num_batches)
        self._replays.append(replay)
        if len(self._replays) == 1:
            self._continue_replays()

    def _continue_replays(self) -> None:
        """Send some batches of the oldest request, and come back for more."""
        if self._router is None or self._router.closed or not self._replays:
            return
        assert self._loop is not None
        replay = self._replays[0]
        first = self.num_batches - len(self._buffer)
        start = max(replay.next_seq, first)
        end = min(replay.end_seq, start + BATCHES_AT_ONCE)
        for seq, payload in enumerate(islice(self._buffer, start - first, end - first), start):
            self._reply(replay.peer, [self.topic.encode(), _seq_bytes(seq), payload])
        replay.next_seq = end
        if end >= replay.end_seq:
            self._reply(replay.peer, [b"", END_OF_REPLAY, b""])
            self._replays.popleft()
        self._loop.call_soon(self._continue_replays)
        self._loop.call_soon(self._read_requests)  # sending may swallow an arrival's signal

    def _reply(self, peer: bytes, frames: list[bytes]) -> None:
        assert self._router is not None
        self._router.send_multipart([peer, b"", *frames], zmq.NOBLOCK)  # a peer gone is no error


def event_map(event: KVCacheEvent) -> dict[str, Any]:
    """An event as vLLM sends it: the keys, and hashes as the low 64 bits of each."""
    match event:
        case BlockStored():
            parent = event.parent_block_hash
            return {
                "type": "BlockStored",
                "block_hashes": [_hash_number(name) for name in event.block_hashes],
                "parent_block_hash": None if parent is None else _hash_number(parent),
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "lora_id": None,
                "medium": MEDIUM,
                "lora_name": event.lora_name,
                "extra_keys": event.extra_keys or [None] * len(event.block_hashes),
                "group_idx": KV_CACHE_GROUP,
                "kv_cache_spec_kind": "full_attention",
            }
        case BlockRemoved():
            return {
                "type": "BlockRemoved",
                "block_hashes": [_hash_number(name) for name in event.block_hashes],
                "medium": MEDIUM,
                "group_idx": KV_CACHE_GROUP,
            }
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}
        case _:
            assert_never(event)


def _hash_number(name: bytes) -> int:
    return int.from_bytes(name[-8:], "big")


def _seq_bytes(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


def _bind(socket: "zmq.Socket[bytes]", endpoint: str, *, limit: int) -> "zmq.Socket[bytes]":
    socket.setsockopt(zmq.SNDHWM, limit)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot publish KV events on {endpoint}: {error.strerror}") from error
    return socket


def _endpoint(socket: "zmq.Socket[bytes]") -> str:
    """Where it listens, with the port the system chose."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
