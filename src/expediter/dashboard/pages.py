"""The pages themselves and their files: the same for everybody, nothing of the fleet is in them.

So they need no token; what they ask does. Nothing of theirs comes from another host, and the
headers keep a browser from fetching or sending anything elsewhere.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parents[1] / "static"
PAGES = ("dashboard", "playground", "lab")
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes() -> list[BaseRoute]:
    """/dashboard, where / leads, /playground, /lab, and their files under /static."""
    return [
        Route("/", _home),
        *(Route(f"/{name}", _page) for name in PAGES),
        Mount("/static", _Files(directory=STATIC)),
    ]


async def _home(_: Request) -> Response:
    return RedirectResponse("/dashboard", headers=HEADERS)


async def _page(request: Request) -> Response:
    file = STATIC / f"{request.url.path.strip('/')}.html"
    return FileResponse(file, media_type="text/html", headers=HEADERS)


class _Files(StaticFiles):
    """With the page's headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
