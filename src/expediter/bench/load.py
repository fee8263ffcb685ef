"""Sends a workload to an endpoint when it is due, whatever has become of what was sent before.

An open loop: a slow endpoint gets no relief, as real users would give it none. Only a turn that
follows another of its session waits, for that one's answer and a pause to think. How late each
request left is measured (`lag`), since a generator that falls behind measures itself.
"""

import asyncio
import gc
from collections.abc import Callable, Iterable, Sequence

import msgspec

from expediter.bench.endpoint import Client
from expediter.bench.reply import Reply
from expediter.bench.texts import Writer
from expediter.workload.replay import replay
from expediter.workload.turn import Turn


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A turn and its reply. Times are seconds from the start of the run."""

    turn: Turn
    reply: Reply
    due_at: float
    sent_at: float

    @property
    def lag(self) -> float:
        """How late it was sent."""
        return max(0.0, self.sent_at - self.due_at)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, in the order in which requests were sent."""

    answered: Sequence[Answered]
    seconds: float
    most_open: int  # requests at one time


class LoadGenerator:
    """One run of a workload."""

    def __init__(
        self,
        client: Client,
        writer: Writer,
        *,
        max_concurrency: int | None = None,
        on_answer: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self._writer = writer
        self._on_answer = on_answer
        self._slots = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._answered: list[Answered] = []
        self._ended: dict[str, float] = {}  # by session, when its last answer did
        self._started = 0.0
        self._num_open = 0
        self._most_open = 0

    async def run(self, turns: Iterable[Turn]) -> Load:
        """Returns when every answer has ended."""
        loop = asyncio.get_running_loop()
        gc.collect()
        gc.freeze()  # the workload is no garbage: looking through it would make us late
        try:
            self._started = loop.time()
            await replay(turns, self._send)
        finally:
            gc.unfreeze()
        return Load(
            answered=sorted(self._answered, key=lambda each: each.sent_at),
            seconds=loop.time() - self._started,
            most_open=self._most_open,
        )

    async def _send(self, turn: Turn) -> None:
        due_at = self._due(turn)
        if self._slots is None:
            await self._exchange(turn, due_at)
            return
        async with self._slots:
            await self._exchange(turn, due_at)

    async def _exchange(self, turn: Turn, due_at: float) -> None:
        self._num_open += 1
        self._most_open = max(self._most_open, self._num_open)
        reply = await self._client.send(self._writer.ask(turn))
        self._num_open -= 1
        if reply.is_complete:
            self._writer.remember(turn, reply.text)
        if turn.session is not None:
            self._ended[turn.session] = reply.ended_at - self._started
        sent_at = reply.sent_at - self._started
        self._answered.append(Answered(turn=turn, reply=reply, due_at=due_at, sent_at=sent_at))
        if self._on_answer is not None:
            self._on_answer()

    def _due(self, turn: Turn) -> float:
        if turn.think_time is None or turn.session is None:
            return turn.arrival_time
        return self._ended.get(turn.session, turn.arrival_time) + turn.think_time
