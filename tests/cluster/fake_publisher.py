"""A publisher as vLLM's: PUB and ROUTER sockets, numbered batches, a replay buffer."""

import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq
import zmq.asyncio

END = b"\xff" * 8


class FakePublisher:
    """Publishes events; `lose` skips sending a batch, and `answers` may be told to forget."""

    def __init__(
        self, *, port: int = 0, replay_port: int = 0, buffer: int = 100, first_seq: int = 0
    ) -> None:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._pub.bind(f"tcp://127.0.0.1:{port or '*'}")
        self._router.bind(f"tcp://127.0.0.1:{replay_port or '*'}")
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._seq = first_seq
        self.num_replays = 0

    @property
    def ports(self) -> tuple[int, int]:
        return int(self.endpoint.split(":")[-1]), int(self.replay_endpoint.split(":")[-1])

    async def publish(self, *events: object, lose: bool = False) -> None:
        payload = msgspec.msgpack.encode([time.time(), list(events), 0])
        await self.publish_raw(payload, lose=lose)

    async def publish_raw(self, payload: bytes, *, lose: bool = False) -> None:
        self._buffer.append((self._seq, payload))
        if not lose:
            frames = [b"", self._seq.to_bytes(8, "big"), payload]
            await self._pub.send_multipart(frames)
        self._seq += 1

    async def serve_replays(self) -> None:
        while True:
            peer, _, asked = await self._router.recv_multipart()
            self.num_replays += 1
            start = int.from_bytes(asked, "big")
            for seq, payload in list(self._buffer):
                if seq >= start:
                    frames = [peer, b"", b"", seq.to_bytes(8, "big"), payload]
                    await self._router.send_multipart(frames)
            await self._router.send_multipart([peer, b"", b"", END, b""])

    def close(self) -> None:
        self._context.destroy(linger=0)


def stored(hashes: Sequence[object], parent: object, tokens: Sequence[int]) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": len(tokens) // len(hashes),
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "unheard_of": [1, {"a": 2}],
    }


def removed(*hashes: object, medium: str = "GPU") -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}
