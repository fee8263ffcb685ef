"""How the cluster reaches a worker, and where the worker's answer goes.

The answer's bytes do not pass through the dispatcher: they go from the worker's client straight
into a sink that the front door hands down. What comes back up is only when the first byte came
and how it ended. The records are structs because one of each is made for every request.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from expediter.cluster.decisions import Decision, TransferReport

Header = tuple[bytes, bytes]
"""Name in lower case, value."""


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request on its way to a worker. `lines` are its end-to-end headers, without any length."""

    method: bytes
    target: bytes
    lines: bytes = b""
    body: bytes = b""


class BodyKind(Enum):
    """How the end of a response's body can be told."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until-close"


class ResponseHead(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Status line and headers as the worker sent them; `length` is set for `BodyKind.LENGTH`."""

    status: int
    reason: bytes
    headers: Sequence[Header]
    body: BodyKind
    length: int = 0

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Inflow(Protocol):
    """The worker's side of a running answer, for a sink that cannot keep up or must break off."""

    @property
    def is_between_chunks(self) -> bool:
        """Whether what was handed over so far ends a chunk, so that another may follow."""
        ...

    def pause_reading(self) -> None:
        """Take no more bytes from the worker for now."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an answer says it used, in tokens; None where it does not say."""

    prompt_tokens: int
    cached_tokens: int | None = None
    output_tokens: int | None = None
    transfer: TransferReport | None = None


class ResponseSink(Protocol):
    """Takes one answer: `placed` for each try, then `start`, any number of `write`, `end`."""

    def placed(self, decision: Decision) -> None:
        """This worker is about to be tried."""
        ...

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:
        """The first byte is there. True asks for a chunked body as it came, framing included."""
        ...

    def write(self, data: bytes) -> None:
        """Some of the body."""
        ...

    def end(self) -> None:
        """The body is complete."""
        ...

    def usage(self) -> Usage | None:
        """What the answer, once complete, says it used."""
        ...


class Exchange(Protocol):
    """An answer whose first byte has arrived."""

    @property
    def status(self) -> int:
        """The HTTP status the worker answered with."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether the answer is over already and there was nothing in it."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all of the answer is in the sink already: then there is no end to wait for."""
        ...

    async def ended(self) -> None:
        """Returns after the sink's `end`; raises WorkerLost or WorkerSilent if it never comes."""
        ...


class WorkerClient(Protocol):
    """One worker as seen from here. Cancelling a call gives its request up at the worker."""

    async def send(self, request: ForwardedRequest, sink: ResponseSink) -> Exchange:
        """Returns at the first byte of the body, or at the head if there is no body.

        Raises WorkerRefused if the worker was not reached, WorkerLost or WorkerSilent if it
        was and did not answer, WorkerUnavailable if no connection can be made from here; nothing
        has been written to the sink then.
        """
        ...

    async def fetch(self, path: str, *, timeout: float) -> tuple[int, bytes]:  # noqa: ASYNC109
        """Status and body of a GET; raises as `send` and `Exchange.ended` do."""
        ...

    def close(self) -> None:
        """Drop every connection."""
        ...
