"""The lab's addresses: the page, its files, and what it asks.

Made for any Starlette application: `expediter lab` serves nothing else, a gateway's admin port
could. Everything is a GET whose query string is the whole question.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from expediter.errors import ConfigError, RequestError
from expediter.lab import burst, demo, disaggregation, policies
from expediter.lab.pool import LabFailed, Pool
from expediter.lab.questions import (
    BurstQuestion,
    RoutingQuestion,
    TransferQuestion,
    choices,
    parse,
)
from expediter.pages import HEADERS, files, page
from expediter.simulation.study import BuildPolicy

Handler = Callable[[Request], Awaitable[Response]]
GONE = 499  # what nobody will read: the client has closed the connection
WATCH_SECONDS = 0.1


def create_lab_routes(*, build_policy: BuildPolicy, pool: Pool | None = None) -> list[BaseRoute]:
    """The page under /lab, its files under /static, its answers under /api/lab."""
    answers = _Answers(pool or Pool(), build_policy)
    return [
        page("/lab", name="lab"),
        files(),
        *(
            Route(f"/api/lab/{name}", _refusing(handler))
            for name, handler in (
                ("choices", answers.choices),
                ("routing", answers.routing),
                ("policy", answers.policy),
                ("transfer", answers.transfer),
                ("burst", answers.burst),
            )
        ),
    ]


def create_lab_app(*, build_policy: BuildPolicy) -> Starlette:
    """The lab alone, with its page at / too."""
    pool = Pool()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        pool.start()
        try:
            yield
        finally:
            pool.close()

    routes = create_lab_routes(build_policy=build_policy, pool=pool)
    return Starlette(routes=[page("/", name="lab"), *routes], lifespan=lifespan)


class _Answers:
    def __init__(self, pool: Pool, build_policy: BuildPolicy) -> None:
        self._pool = pool
        self._build_policy = build_policy

    async def choices(self, _: Request) -> Response:
        return _json(choices())

    async def routing(self, request: Request) -> Response:
        """The page's five policies; in the form of blocks they take a second."""
        question = parse(RoutingQuestion, request.query_params)
        if question.form == "published":
            return await _answered(request, self._pool.ask("quick", demo.compare, question.setting))
        ask = self._pool.ask("quick", policies.in_blocks, question.setting, self._build_policy)
        return await _answered(request, ask)

    async def policy(self, request: Request) -> Response:
        """One of the gateway's own policies, on replicas with queues."""
        question = parse(RoutingQuestion, request.query_params)
        arguments = question.policy, question.form, question.setting, self._build_policy
        return await _answered(request, self._pool.ask("slow", policies.play, *arguments))

    async def transfer(self, request: Request) -> Response:
        """Arithmetic, and at once."""
        question = parse(TransferQuestion, request.query_params)
        return _json(disaggregation.answer(question.case))

    async def burst(self, request: Request) -> Response:
        """A simulation, in a second or two."""
        question = parse(BurstQuestion, request.query_params)
        ask = self._pool.ask("slow", burst.film, question.burst, self._build_policy)
        return await _answered(request, ask)


async def _answered(request: Request, ask: Coroutine[Any, Any, Any]) -> Response:
    """The answer, unless the page has gone on to another question before it was there."""
    answer = asyncio.create_task(ask)
    try:
        while not (await asyncio.wait([answer], timeout=WATCH_SECONDS))[0]:
            if await request.is_disconnected():
                return Response(status_code=GONE)
        return _json(answer.result())
    finally:
        answer.cancel()


def _refusing(handler: Handler) -> Handler:
    """Errors in the question, as the gateway words errors."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except (ConfigError, RequestError) as error:
            param = getattr(error, "param", None)
            return _json({"error": {"message": str(error), "param": param}}, status=400)
        except LabFailed as error:
            return _json({"error": {"message": str(error), "param": None}}, status=error.status)

    return handle


def _json(content: Any, *, status: int = 200) -> Response:
    return Response(
        msgspec.json.encode(content),
        status_code=status,
        media_type="application/json",
        headers=HEADERS,
    )
