"""The pages of the admin port. They need no token; what they ask does."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from expediter.pages import HEADERS, files, page

PAGES = ("dashboard", "playground", "lab")


def page_routes() -> list[BaseRoute]:
    """/dashboard, where / leads, /playground, /lab, and their files under /static."""
    return [
        Route("/", _home),
        *(page(f"/{name}", name=name) for name in PAGES),
        files(),
    ]


async def _home(_: Request) -> Response:
    return RedirectResponse("/dashboard", headers=HEADERS)
