"""What a worker and the processes of its other ranks say to each other.

The worker says first what to load, then `Join` once every rank has loaded, then a frame for each
step. A rank says once that it has loaded, and nothing more. Each frame is its length, then
MessagePack. Who reads the end of the stream knows that the other process is gone.
"""

import socket
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from expediter.config import EngineConfig, KVCacheConfig
from expediter.request import SamplingParams
from expediter.scheduling.output import ScheduledChunk

_LENGTH_BYTES = 4
_PLAIN = SamplingParams()


class RankOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is to be, and the port of the store where the ranks find each other."""

    rank: int
    engine: EngineConfig
    kv_cache: KVCacheConfig
    store_port: int
    timeout_seconds: float
    log_level: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A rank has its weights and its pool; `pool_path` is where that can be mapped, if it can."""

    pool_path: str | None


class Channel:
    """One side of the connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, frame: bytes) -> None:
        """Raises OSError if the other side is gone, TimeoutError if it does not read."""
        self._socket.sendall(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)

    def receive(self) -> bytes | None:
        """The next frame; None when the other side is gone."""
        header = self._read(_LENGTH_BYTES)
        return self._read(int.from_bytes(header, "big")) if header else None

    def set_timeout(self, seconds: float) -> None:
        """How long a frame may take from now on."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """The other side reads the end."""
        self._socket.close()

    def _read(self, num_bytes: int) -> bytes | None:
        parts = []
        while num_bytes:
            try:
                part = self._socket.recv(num_bytes)
            except ConnectionError:
                return None
            if not part:
                return None
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)


def encode_step(chunks: Sequence[ScheduledChunk]) -> bytes:
    """A step for ranks that do not sample."""
    # Tokens generated so far are the sampler's, and would be most of the frame.
    return msgspec.msgpack.encode(
        [replace(chunk, sampling=_PLAIN, output_token_ids=()) for chunk in chunks]
    )


def decode_step(frame: bytes) -> list[ScheduledChunk]:
    """The chunks, but for what only sampling needs."""
    return msgspec.msgpack.decode(frame, type=list[ScheduledChunk])
