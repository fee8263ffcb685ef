"""Who may use the admin port.

Without a token everybody on this machine may, except web pages in a browser there: a page of
another origin, or one whose name was pointed at loopback, is refused. With a token every request
has to bring it, but for the pages that a browser fetches before it can ask for one.
"""

import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from expediter.gateway.replies import error_body

_SAFE_METHODS = frozenset({"GET", "HEAD"})


class Door:
    """Lets in who has the token; without one, whoever is not a web page from elsewhere."""

    def __init__(self, app: ASGIApp, *, token: str | None, pages: Sequence[BaseRoute] = ()) -> None:
        self._app = app
        self._pages = pages
        self._token = token.encode() if token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 403, or pass the request on."""
        if scope["type"] == "http":
            headers: dict[bytes, bytes] = dict(scope["headers"])
            answer = self._refusal(headers, scope)
            if answer is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes], scope: Scope) -> Response | None:
        method = scope["method"]
        if self._token is not None:
            if self._is_page(scope):
                return None
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            matches = hmac.compare_digest(given.strip(), self._token)
            if matches and scheme.lower() == b"bearer":
                return None
            response = refusal(401, "the admin token is needed: Authorization: Bearer TOKEN")
            response.headers["www-authenticate"] = "Bearer"
            return response
        host = headers.get(b"host", b"").decode("latin-1")
        if not is_loopback(_hostname(host)):
            return refusal(403, "without a token, call this port by a loopback address")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and method not in _SAFE_METHODS and origin.partition("://")[2] != host:
            return refusal(403, "pages of other origins may change nothing here")
        return None

    def _is_page(self, scope: Scope) -> bool:
        """Whether it is the same for everybody, so that a browser can fetch it without a token."""
        if scope["method"] not in _SAFE_METHODS:
            return False
        return any(page.matches(scope)[0] is Match.FULL for page in self._pages)


def is_loopback(host: str) -> bool:
    """Whether only this machine can be meant."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(status: int, message: str, *, kind: str = "invalid_request_error") -> Response:
    """An error as OpenAI's API shapes it."""
    body = error_body(message, kind=kind, code=status)
    return Response(body, status, media_type="application/json")


def _hostname(host: str) -> str:
    """The name in a Host header, without the port; empty if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
