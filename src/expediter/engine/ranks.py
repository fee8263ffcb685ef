"""The processes of a worker's other ranks: started, told of each step, watched, ended.

Rank 0 is the worker itself. Each other rank is a child whose standard input is a socket that only
the worker holds: the kernel closes it when the worker dies, however it dies, and the rank
leaves. A rank that dies takes the engine with it. Its part of the KV and of every sum is gone, so
the other ranks are ended, and who listens is told.
"""

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import torch

from expediter.config import EngineConfig, KVCacheConfig
from expediter.engine.collectives import Group, listen
from expediter.engine.rank_wire import Channel, Loaded, RankOrder, encode_step
from expediter.engine.shard import Shard
from expediter.errors import EngineLost
from expediter.scheduling.output import ScheduledChunk
from expediter.transfer.memory import PoolMemory

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 5.0  # what a rank may take to leave
REASON_SECONDS = 1.0  # what a dead rank's status may take to be known

LossListener = Callable[[EngineLost], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    channel: Channel


class Ranks:
    """Starts them. After `connect` they run whatever steps they are told of."""

    def __init__(self, config: EngineConfig, kv: KVCacheConfig) -> None:
        self._config = config
        self._ranks: list[_Rank] = []
        self._memories: list[PoolMemory] = []
        self._group: Group | None = None
        self._has_failed = threading.Event()
        self._lock = threading.Lock()  # for what threads that watch a rank share with ours:
        self._failure: EngineLost | None = None
        self._listener: LossListener | None = None
        self._is_closing = False
        self._store, port = listen()
        try:
            for number in range(1, config.tensor_parallel):
                self._ranks.append(_start(number))
                order = RankOrder(
                    rank=number,
                    engine=config,
                    kv_cache=kv,
                    store_port=port,
                    timeout_seconds=config.rank_timeout_seconds,
                    log_level=logging.getLogger().getEffectiveLevel(),
                )
                self._ranks[-1].channel.send(msgspec.msgpack.encode(order))
        except BaseException:
            self.close()
            raise

    def connect(self, *, device: torch.device, pool_bytes: int) -> Group:
        """Wait until all have loaded, map their pools, join them; EngineLost if one died."""
        timeout = self._config.rank_timeout_seconds
        paths = [self._loaded(rank).pool_path for rank in self._ranks]
        self._memories += [PoolMemory.open(path, pool_bytes) for path in paths if path]
        for rank in self._ranks:
            rank.channel.set_timeout(timeout)
            threading.Thread(
                target=self._watch, args=(rank,), daemon=True, name=f"rank-{rank.number}"
            ).start()
        with self._losing():
            for rank in self._ranks:
                rank.channel.send(b"")
            shard = Shard(rank=0, size=self._config.tensor_parallel)
            self._group = Group(self._store, shard=shard, device=device, timeout_seconds=timeout)
        return self._group

    @property
    def memories(self) -> Sequence[PoolMemory]:
        """The pools of ranks 1 and on, mapped; empty where memory cannot be."""
        return self._memories

    @contextmanager
    def step(self, chunks: Sequence[ScheduledChunk]) -> Iterator[None]:
        """Tell all of a step; our own part of it runs within. Whatever it raises is EngineLost."""
        if self._failure is not None:
            raise self._failure
        with self._losing():
            frame = encode_step(chunks)
            for rank in self._ranks:
                rank.channel.send(frame)
            yield

    def on_loss(self, listener: LossListener) -> None:
        """`listener` hears, in any thread, when a rank is lost; at once if one was."""
        with self._lock:
            self._listener = listener
            failure = self._failure
        if failure is not None:
            listener(failure)

    def close(self) -> None:
        """End them; when this returns none is left. May be called twice."""
        with self._lock:
            self._is_closing = True
        for rank in self._ranks:
            rank.channel.close()
        for rank in self._ranks:
            try:
                rank.process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
        if self._group is not None:
            self._group.close()
            self._group = None
        while self._memories:
            self._memories.pop().close()

    def _loaded(self, rank: _Rank) -> Loaded:
        frame = rank.channel.receive()
        if frame is None:
            raise EngineLost(f"{self._ended(rank)} before it had loaded the model")
        return msgspec.msgpack.decode(frame, type=Loaded)

    def _watch(self, rank: _Rank) -> None:
        reason = self._ended(rank)
        self._lose(EngineLost(reason))

    def _ended(self, rank: _Rank) -> str:
        """Waits for its end, and says how it came."""
        status = rank.process.wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"left ({status})"
        return f"rank {rank.number} of {self._config.tensor_parallel} {how}"

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Whatever goes wrong within leaves the ranks out of step: they are lost."""
        try:
            yield
        except Exception as error:
            # A dead rank shows first as a broken connection.
            self._has_failed.wait(REASON_SECONDS)
            self._lose(EngineLost(f"the ranks do not work together any more: {error}"))
            assert self._failure is not None
            raise self._failure from error

    def _lose(self, failure: EngineLost) -> None:
        with self._lock:
            if self._is_closing or self._failure is not None:
                return
            self._failure, listener = failure, self._listener
        self._has_failed.set()
        logger.error("%s", failure)
        for rank in self._ranks:
            rank.process.kill()
        if listener is not None:
            listener(failure)


def _start(number: int) -> _Rank:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "expediter.engine.rank"]
    with theirs, _without_signals():
        process = subprocess.Popen(command, stdin=theirs.fileno())
    return _Rank(number=number, process=process, channel=Channel(ours))


@contextmanager
def _without_signals() -> Iterator[None]:
    """A process started within never gets these: Ctrl-C reaches a whole group of processes, and
    the worker still needs its ranks to finish what it has begun.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
