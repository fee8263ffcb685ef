"""Web pages and their files: the same for everybody, nothing of a fleet is in them.

Nothing of theirs comes from another host, and the headers keep a browser from fetching or
sending anything elsewhere.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page(path: str, *, name: str) -> Route:
    """The page that the file `name`.html holds, at `path`."""

    async def answer(_: Request) -> Response:
        return FileResponse(STATIC / f"{name}.html", media_type="text/html", headers=HEADERS)

    return Route(path, answer)


def files() -> Mount:
    """What pages are made of, under /static."""
    return Mount("/static", _Files(directory=STATIC))


class _Files(StaticFiles):
    """With the pages' headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
