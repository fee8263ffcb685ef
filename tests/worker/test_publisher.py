import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from expediter.errors import ConfigError
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from expediter.worker import publisher as module
from expediter.worker.publisher import BATCHES_AT_ONCE, END_OF_REPLAY, KVEventPublisher, event_map

ANYWHERE = "tcp://127.0.0.1:*"
SECONDS = 10.0
HASHES = [bytes(range(32)), bytes(range(1, 33))]


def stored(number: int = 0, **fields: Any) -> BlockStored:
    name = number.to_bytes(32, "big")
    given = {"block_hashes": [name], "token_ids": [number] * 4, "block_size": 4, **fields}
    return BlockStored(parent_block_hash=None, **given)


class Listener:
    """Subscribes, and asks for replays."""

    def __init__(self, publisher: KVEventPublisher, *, topic: str = "") -> None:
        self.context = zmq.asyncio.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.sub.connect(publisher.endpoint)
        self.dealer = self.context.socket(zmq.DEALER)
        if publisher.replay_endpoint is not None:
            self.dealer.connect(publisher.replay_endpoint)

    async def next(self) -> tuple[bytes, int, Any]:
        async with asyncio.timeout(SECONDS):
            topic, seq, payload = await self.sub.recv_multipart()
        return topic, int.from_bytes(seq, "big"), msgspec.msgpack.decode(payload)

    async def replay(self, start: int) -> list[int]:
        await self.dealer.send_multipart([b"", start.to_bytes(8, "big")])
        numbers = []
        async with asyncio.timeout(SECONDS):
            while True:
                empty, topic, seq, payload = await self.dealer.recv_multipart()
                assert empty == b""
                if not payload:
                    assert (topic, seq) == (b"", END_OF_REPLAY)
                    return numbers
                numbers.append(int.from_bytes(seq, "big"))
                [event] = msgspec.msgpack.decode(payload)[1]
                assert event["token_ids"][0] == numbers[-1]

    def close(self) -> None:
        self.context.destroy(linger=0)


@asynccontextmanager
async def publishing(**options: Any) -> AsyncIterator[KVEventPublisher]:
    publisher = KVEventPublisher(ANYWHERE, replay_endpoint=ANYWHERE, **options)
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.close()


@asynccontextmanager
async def listening(publisher: KVEventPublisher) -> AsyncIterator[Listener]:
    """A listener whose subscription has arrived."""
    listener = Listener(publisher)
    try:
        while True:
            publisher.publish([stored(publisher.num_batches)])
            if await listener.sub.poll(20):
                break
        while await listener.sub.poll(0):
            await listener.next()
        yield listener
    finally:
        listener.close()


async def test_a_message_is_topic_number_and_batch() -> None:
    async with publishing(clock=lambda: 12.5) as publisher, listening(publisher) as listener:
        number = publisher.num_batches
        publisher.publish([stored(1), AllBlocksCleared()])
        assert await listener.next() == (
            b"",
            number,
            [12.5, [event_map(stored(1)), {"type": "AllBlocksCleared"}], 0],
        )


async def test_a_listener_that_missed_batches_gets_them_again() -> None:
    async with publishing() as publisher:
        for i in range(1000):
            publisher.publish([stored(i)])
        async with listening(publisher) as listener:
            last = publisher.num_batches
            assert await listener.replay(990) == list(range(990, last))
            assert await listener.replay(0) == list(range(last))
            assert await listener.replay(last) == []
            assert await listener.replay(last + 5) == []


async def test_batches_fallen_out_of_the_buffer_are_not_replayed() -> None:
    async with publishing(buffer_batches=10) as publisher:
        for i in range(25):
            publisher.publish([stored(i)])
        listener = Listener(publisher)
        assert await listener.replay(3) == list(range(15, 25))
        listener.close()


async def test_publishing_goes_on_during_a_long_replay() -> None:
    """And what was published since the request is not part of the replay."""
    num_batches = 5 * BATCHES_AT_ONCE
    async with publishing(buffer_batches=2 * num_batches) as publisher:
        for i in range(num_batches):
            publisher.publish([stored(i)])
        listener = Listener(publisher)
        replay = asyncio.create_task(listener.replay(0))
        while not replay.done():
            await asyncio.sleep(0)
            if publisher.num_batches < 2 * num_batches:
                publisher.publish([stored(publisher.num_batches)])
        numbers = replay.result()
        assert numbers == list(range(len(numbers)))
        assert num_batches <= len(numbers) <= publisher.num_batches
        listener.close()


async def test_two_listeners_replay_at_once() -> None:
    async with publishing() as publisher:
        for i in range(3 * BATCHES_AT_ONCE):
            publisher.publish([stored(i)])
        one, two = Listener(publisher), Listener(publisher)
        first, second = await asyncio.gather(one.replay(0), two.replay(700))
        assert (first, second) == (list(range(768)), list(range(700, 768)))
        one.close()
        two.close()


async def test_nonsense_on_the_replay_socket_is_ignored() -> None:
    async with publishing() as publisher:
        publisher.publish([stored(0)])
        listener = Listener(publisher)
        for frames in ([b"x"], [b"", b"short"], [b"", b"", b"", b""], [b"", b"x" * 9]):
            await listener.dealer.send_multipart(frames)
        assert await listener.replay(0) == [0]
        listener.close()


async def test_a_slow_listener_loses_batches_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It finds the gap by the numbers and repairs it with a replay."""
    monkeypatch.setattr(module, "MAX_UNSENT_BATCHES", 2)
    async with publishing() as publisher:
        context = zmq.asyncio.Context()
        slow = context.socket(zmq.SUB)
        slow.setsockopt(zmq.RCVHWM, 1)
        slow.setsockopt(zmq.RCVBUF, 4096)
        slow.subscribe(b"")
        slow.connect(publisher.endpoint)
        async with asyncio.timeout(SECONDS):
            while not publisher.num_dropped_batches:
                publisher.publish([stored(0, token_ids=list(range(20_000)))])
                await asyncio.sleep(0)
        num_batches = publisher.num_batches
        listener = Listener(publisher)
        await listener.dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        async with asyncio.timeout(SECONDS):
            for seq in range(num_batches):
                frames = await listener.dealer.recv_multipart()
                assert frames[2] == seq.to_bytes(8, "big")
        listener.close()
        context.destroy(linger=0)


async def test_what_was_published_before_closing_arrives() -> None:
    publisher = KVEventPublisher(ANYWHERE, replay_endpoint=ANYWHERE)
    publisher.start()
    async with listening(publisher) as listener:
        start = publisher.num_batches
        for i in range(200):
            publisher.publish([stored(start + i)])
        publisher.close()
        numbers = [(await listener.next())[1] for _ in range(200)]
        assert numbers == list(range(start, start + 200))


async def test_a_restarted_publisher_counts_from_zero_at_the_same_address(tmp_path: Path) -> None:
    endpoints = [f"ipc://{tmp_path}/{name}" for name in ("events", "replay")]
    for _ in range(2):
        publisher = KVEventPublisher(endpoints[0], replay_endpoint=endpoints[1])
        publisher.start()
        publisher.publish([stored(0)])
        listener = Listener(publisher)
        assert await listener.replay(0) == [0]
        listener.close()
        publisher.close()


def test_an_address_in_use_is_a_config_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot publish KV events"):
            KVEventPublisher(f"ipc://{tmp_path}/events", replay_endpoint=taken)


def test_hashes_are_the_low_64_bits() -> None:
    sent = event_map(BlockRemoved(block_hashes=HASHES))
    assert sent["block_hashes"] == [int.from_bytes(name, "big") % 2**64 for name in HASHES]


def test_events_have_the_keys_and_types_of_real_vllm(traces: Path) -> None:
    ours = {kind: _shape(event_map(event)) for kind, event in _examples().items()}
    seen = set()
    for event in _recorded(traces / "vllm"):
        shape = _shape(event)
        shape.pop("session_id", None)  # only where a client named a session
        shape["block_hashes"] = ours[event["type"]].get("block_hashes", set())
        if event["type"] == "AllBlocksCleared":
            del shape["block_hashes"]
        assert shape.keys() == ours[event["type"]].keys()
        for key, types in shape.items():
            assert types <= ours[event["type"]][key] | {type(None)}, key
        seen.add(event["type"])
    assert seen == set(ours)


def test_integer_hashes_are_what_vllm_sends_by_default(traces: Path) -> None:
    hashes = [
        name
        for event in _recorded(traces / "vllm", pattern="kv_events_prefill*")
        for name in event.get("block_hashes", [])
    ]
    assert all(isinstance(name, int) and 0 <= name < 2**64 for name in hashes)
    assert hashes


def _examples() -> dict[str, KVCacheEvent]:
    return {
        "BlockStored": stored(1),
        "BlockRemoved": BlockRemoved(block_hashes=HASHES),
        "AllBlocksCleared": AllBlocksCleared(),
    }


def _recorded(folder: Path, *, pattern: str = "*") -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob(f"{pattern}.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            yield from json.loads(line)["batch"][1]


def _shape(event: dict[str, Any]) -> dict[str, set[type]]:
    return {
        key: {type(value)} if not isinstance(value, list) else {list, *map(type, value)}
        for key, value in event.items()
    }
