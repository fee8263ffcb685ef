"""An answer on its way to the client, whole or as server-sent events.

Two coroutines a request: one writes what is new, once a step at most; the other waits for the
client to leave, and then ends the generation at once.
"""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from expediter.worker.answers import Answer
from expediter.worker.generation import Generation
from expediter.worker.replies import JSON, failure_event, failure_response

EVENT_STREAM = "text/event-stream; charset=utf-8"


class GenerationResponse(Response):
    """Answers one request. The status waits for the first token, so that it can still say 500."""

    def __init__(
        self, generation: Generation, *, answer: Answer, is_streamed: bool, request_id: str
    ) -> None:
        super().__init__()
        self._generation = generation
        self._answer = answer
        self._is_streamed = is_streamed
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application; the generation is over when it returns."""
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(self._watch(receive))
            try:
                await self._generation.wait()
                if self._generation.failure is not None:
                    await self._with_id(failure_response(self._generation.failure))(
                        scope, receive, send
                    )
                elif self._is_streamed:
                    await self._stream(send)
                elif not self._generation.was_abandoned:
                    body = self._answer.whole(self._generation.choices)
                    await self._with_id(Response(body, media_type=JSON))(scope, receive, send)
            finally:
                watcher.cancel()
                self._generation.stop()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._generation.abandon()

    async def _stream(self, send: Send) -> None:
        response = self._with_id(Response(media_type=EVENT_STREAM))
        del response.headers["content-length"]
        response.headers["cache-control"] = "no-cache"
        await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
        generation = self._generation
        while not generation.was_abandoned:
            is_over = generation.is_over  # before the news is taken: none comes after
            body = self._news() + (self._ending() if is_over else b"")
            await send({"type": "http.response.body", "body": body, "more_body": not is_over})
            if is_over:
                return
            await generation.wait()

    def _news(self) -> bytes:
        choices = self._generation.choices
        return b"".join(self._answer.events(c) for c in choices if c.has_news)

    def _ending(self) -> bytes:
        failure = self._generation.failure
        if failure is not None:
            return failure_event(failure)
        return self._answer.end(self._generation.choices)

    def _with_id(self, response: Response) -> Response:
        response.headers["x-request-id"] = self._request_id
        return response
