"""Routes made when they are first asked for, because what they need takes long to import."""

import asyncio
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute, Route, Router

MakeRoutes = Callable[[], Sequence[BaseRoute]]


def made_later(path: str, make: MakeRoutes) -> Route:
    """One route for all that `make` gives under `path`."""
    made: list[Router] = []
    making = asyncio.Lock()

    async def answer(_: Request) -> Router:
        async with making:
            if not made:
                made.append(Router(await asyncio.to_thread(make)))
        return made[0]

    return Route(path, answer)
