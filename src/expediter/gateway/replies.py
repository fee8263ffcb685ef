"""Answers that the gateway gives itself, and errors in OpenAI's shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from expediter.cluster.client import Header
from expediter.errors import ExpediterError
from expediter.gateway.headers import render

JSON = b"application/json"
RETRY_AFTER_SECONDS = 1  # when no worker is ready: about the time between two probes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete answer."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = JSON
    headers: Sequence[Header] = ()


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int


def error_body(message: str, *, kind: str, code: int, param: str | None = None) -> bytes:
    """The JSON of an error as OpenAI's API shapes it."""
    error = _Error(message=message, type=kind, param=param, code=code)
    return msgspec.json.encode({"error": error})


def error_reply(status: int, message: str) -> Reply:
    """An error of the gateway's own."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == HTTPStatus.NOT_FOUND:
        kind = "not_found_error"
    return Reply(status=status, body=error_body(message, kind=kind, code=status))


def failure_reply(error: ExpediterError) -> Reply:
    """The answer to a request that failed before anything of an answer went out."""
    status = error.status
    headers = [(b"retry-after", b"%d" % RETRY_AFTER_SECONDS)] if status == 503 else []
    body = error_body(str(error), kind=error.kind, code=status)
    return Reply(status=status, body=body, headers=headers)


def failure_event(error: ExpediterError) -> bytes:
    """A server-sent event that says why a stream breaks off."""
    return b"data: %b\n\n" % error_body(str(error), kind=error.kind, code=error.status)


def json_reply(value: object, *, status: int = 200) -> Reply:
    """A value as JSON."""
    return Reply(status=status, body=msgspec.json.encode(value))


def render_reply(reply: Reply, *, keeps_alive: bool, with_body: bool = True) -> bytes:
    """The answer's bytes; a HEAD request gets everything but the body."""
    head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
        reply.status,
        HTTPStatus(reply.status).phrase.encode(),
        reply.content_type,
        len(reply.body),
        render(reply.headers),
        b"" if keeps_alive else b"connection: close\r\n",
    )
    return head + reply.body if with_body else head
