"""A snapshot of the fleet each second, for as many pages as look.

A snapshot is made when somebody is due for one and the last is old; so many pages cost what one
costs, and none costs nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from expediter.clock import Clock
from expediter.dashboard.series import by_time, summary
from expediter.errors import RequestError
from expediter.gateway.operator import Operator

INTERVAL_SECONDS = 1.0
NUM_DECISIONS = 40
MAX_LISTENERS = 32


def event_routes(operator: Operator, *, clock: Clock) -> list[BaseRoute]:
    """/events: server-sent events, one snapshot each."""
    return [Route("/events", Events(Snapshots(operator, clock=clock)).serve)]


class Snapshots:
    """The newest snapshot, as JSON."""

    def __init__(self, operator: Operator, *, clock: Clock) -> None:
        self._operator = operator
        self._clock = clock
        self._making = asyncio.Lock()
        self._newest = b""
        self._made_at = -INTERVAL_SECONDS

    async def newest(self) -> bytes:
        """One that is less than a second old; where that cannot be had, why."""
        async with self._making:
            if not self._newest or self._clock() - self._made_at >= INTERVAL_SECONDS * 0.9:
                self._made_at = self._clock()
                try:
                    self._newest = msgspec.json.encode(await self._snapshot())
                except RequestError as error:
                    self._newest = msgspec.json.encode({"problem": str(error)})
            return self._newest

    async def _snapshot(self) -> dict[str, object]:
        operator = self._operator
        stats, decisions, activity = await asyncio.gather(
            operator.stats(), operator.decisions(NUM_DECISIONS), operator.activity()
        )
        answers: Any = activity["answers"]
        return {
            "stats": stats,
            "decisions": [_without_scores(decision) for decision in decisions],
            "summary": summary(answers),
            "by_time": by_time(answers),
            "prefixes": activity["prefixes"],
        }


class Events:
    """The stream; `app.state.closing` ends it."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._newest: Callable[[], Any] = snapshots.newest
        self.num_listeners = 0

    async def serve(self, request: Request) -> Response:
        """Snapshots until the page leaves or the gateway does."""
        if self.num_listeners >= MAX_LISTENERS:
            raise HTTPException(503, f"{MAX_LISTENERS} pages are listening, which is the most")
        return StreamingResponse(
            self.stream(request.app.state.closing),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    async def stream(self, closing: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """The events themselves, until `closing` is set."""
        self.num_listeners += 1
        try:
            while not closing.is_set():
                yield b"data: %b\n\n" % await self._newest()
                with suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL_SECONDS):
                        await closing.wait()
        finally:
            self.num_listeners -= 1


def _without_scores(decision: dict[str, object]) -> dict[str, object]:
    """Scores are as many as there are workers; a page asks for those of the one it shows."""
    return {key: value for key, value in decision.items() if key != "scores"}
