"""Answers in JSON, and errors in OpenAI's shape."""

import msgspec
from starlette.responses import Response

from expediter.errors import ExpediterError, RequestError, WorkerUnavailable

JSON = "application/json"
encode = msgspec.json.Encoder().encode


def json_response(value: object, *, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(encode(value), status_code=status, media_type=JSON)


def error_object(
    message: str, *, kind: str, code: int, param: str | None = None
) -> dict[str, object]:
    """An error as OpenAI's API shapes it; `code` is the status, as in vLLM."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def failure_object(error: ExpediterError) -> dict[str, object]:
    """What went wrong, for the client."""
    param = error.param if isinstance(error, RequestError) else None
    return error_object(str(error), kind=error.kind, code=error.status, param=param)


def failure_response(error: ExpediterError) -> Response:
    """The answer to a request of which nothing was answered yet."""
    response = json_response(failure_object(error), status=error.status)
    if isinstance(error, WorkerUnavailable):
        response.headers["connection"] = "close"  # it shuts down: come back elsewhere
    return response


def failure_event(error: ExpediterError) -> bytes:
    """A server-sent event that says why a stream breaks off."""
    return b"data: %b\n\n" % encode(failure_object(error))
