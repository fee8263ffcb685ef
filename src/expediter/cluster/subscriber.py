"""Follows the KV events of one publisher, so that the index holds what the worker holds.

Batches are numbered from 0. A number too high means that some were lost: they are asked for
again over the replay socket, and later ones wait until they came. If they are gone for good,
the worker's view is cleared and learnt anew. A number too low with a newer timestamp means that
the publisher started again, with an empty cache. Each new connection is taken for that too:
whatever happened while there was none, replaying from 0 puts it right.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from expediter.cluster.discovery import KVEventSource
from expediter.cluster.kv_events import EventDecoder, MalformedEvents
from expediter.cluster.zmq_reader import ZmqReader
from expediter.kvcache.events import AllBlocksCleared
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex

logger = logging.getLogger(__name__)

REPLAY_SECONDS = 5.0  # without an answer for so long, a replay is given up
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
MAX_HELD_BATCHES = 10_000  # that wait for a replay; as many as a publisher keeps


class KVEventSubscriber:
    """Applies one publisher's events to the index, from `start` until `close`."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        *,
        source: KVEventSource,
        worker_id: WorkerId,
        index: PrefixIndex,
        emptied: Callable[[WorkerId], None] = lambda _: None,
        connected: Callable[[WorkerId, bool], None] = lambda _worker_id, _is_connected: None,
    ) -> None:
        """`emptied` is called when the worker says, or shows by restarting, that its cache is.

        `connected` is called when the publisher's connection is there, and when it is gone.
        """
        self._context = context
        self._source = source
        self.worker_id = worker_id
        self._index = index
        self._emptied = emptied
        self._connected = connected
        self._decoder = EventDecoder()
        self._readers: list[ZmqReader] = []
        self._replay: ZmqReader | None = None
        self._replay_timeout: asyncio.TimerHandle | None = None
        self._held: deque[tuple[int, bytes]] = deque()
        self._next_seq: int | None = None
        self._last_timestamp = 0.0
        self.num_gaps = 0
        self.num_lost = 0
        self.num_batches = 0

    def start(self) -> None:
        """Connect; the view of the worker is relearnt from its first batch, if that is kept."""
        subscription = self._context.socket(zmq.SUB)
        subscription.setsockopt(zmq.RCVHWM, 0)
        subscription.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        subscription.setsockopt(zmq.SUBSCRIBE, self._source.topic.encode())
        monitor = subscription.get_monitor_socket(_WATCHED)
        self._readers = [
            ZmqReader(monitor, self._on_connection),
            ZmqReader(subscription, self._on_batch),
        ]
        subscription.connect(self._source.events)

    def close(self) -> None:
        """Stop following; what the index knows stays as it is."""
        self._end_replay()
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def resync(self) -> None:
        """Forget what is known of the worker and learn it anew."""
        self._index.clear(self.worker_id)
        self._next_seq = None
        self._held.clear()
        self._start_replay(0)

    def _on_connection(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        is_connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if is_connected:
            self.resync()
        self._connected(self.worker_id, is_connected)

    def _on_batch(self, frames: list[bytes]) -> None:
        if len(frames) < 2 or len(frames[-2]) != 8:
            return  # SGLang's load reports come the same way
        seq = int.from_bytes(frames[-2], "big")
        if self._replay is None:
            self._take(seq, frames[-1])
        elif len(self._held) < MAX_HELD_BATCHES:
            self._held.append((seq, frames[-1]))
        else:
            self._lose("too many batches came during a replay")

    def _take(self, seq: int, payload: bytes) -> None:
        """A live batch: apply it, or first see to what is missing before it."""
        expected = self._next_seq if self._next_seq is not None else 0
        if seq == expected:
            self._apply(seq, payload)
        elif seq > expected:
            self.num_gaps += self._next_seq is not None
            self._held.append((seq, payload))
            if not self._start_replay(expected):
                self._lose(f"batches {expected} to {seq - 1} are missing")
        elif self._is_newer(payload):
            logger.info("%s restarted: its KV events began again at %d", self.worker_id, seq)
            self._index.clear(self.worker_id)
            self._emptied(self.worker_id)
            self._next_seq = None
            self._take(seq, payload)

    def _apply(self, seq: int, payload: bytes) -> None:
        self._next_seq = seq + 1
        try:
            batch = self._decoder.decode(payload)
            for event in batch.events:
                self._index.apply(self.worker_id, event)
                if isinstance(event, AllBlocksCleared):
                    self._emptied(self.worker_id)
        except (MalformedEvents, OverflowError, TypeError) as error:
            logger.warning("%s: KV events %d cannot be read: %s", self.worker_id, seq, error)
            self._index.clear(self.worker_id)
            return
        self._last_timestamp = batch.timestamp
        self.num_batches += 1

    def _is_newer(self, payload: bytes) -> bool:
        try:
            return self._decoder.decode(payload).timestamp > self._last_timestamp
        except MalformedEvents:
            return False

    def _start_replay(self, seq: int) -> bool:
        """Ask for all batches from `seq` on; False if the publisher keeps none."""
        self._end_replay()
        if self._source.replay is None:
            return False
        socket = self._context.socket(zmq.DEALER)
        socket.connect(self._source.replay)
        self._replay = ZmqReader(socket, self._on_replayed)
        self._replay.send([b"", seq.to_bytes(8, "big")])
        self._restart_timeout()
        return True

    def _on_replayed(self, frames: list[bytes]) -> None:
        if self._replay is None or len(frames) < 3:
            return
        if not frames[-1]:
            self._finish_replay()
            return
        seq = int.from_bytes(frames[-2], "big")
        expected = self._next_seq or 0
        if seq > expected:
            self._clear_view(f"batches {expected} to {seq - 1} are no longer kept")
        if seq >= expected:
            self._apply(seq, frames[-1])
        self._restart_timeout()

    def _finish_replay(self) -> None:
        """Go on with the batches that waited; if there still is a gap, it stays one."""
        self._end_replay()
        held, self._held = self._held, deque()
        for seq, payload in held:
            expected = self._next_seq or 0
            if seq > expected:
                self._clear_view(f"batches {expected} to {seq - 1} were not replayed")
                self._apply(seq, payload)
            else:
                self._take(seq, payload)

    def _lose(self, why: str) -> None:
        """Give up on what is missing: start from what is there."""
        self._clear_view(why)
        self._finish_replay()

    def _clear_view(self, why: str) -> None:
        self.num_lost += 1
        logger.warning("%s: its cached blocks are relearnt: %s", self.worker_id, why)
        self._index.clear(self.worker_id)

    def _restart_timeout(self) -> None:
        if self._replay_timeout is not None:
            self._replay_timeout.cancel()
        loop = asyncio.get_running_loop()
        self._replay_timeout = loop.call_later(REPLAY_SECONDS, self._lose, "no replay came")

    def _end_replay(self) -> None:
        if self._replay_timeout is not None:
            self._replay_timeout.cancel()
            self._replay_timeout = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None
