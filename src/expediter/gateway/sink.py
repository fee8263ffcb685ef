"""Where a worker's answer meets the client's socket.

The head is rewritten for this hop; the body's bytes go out as they came, chunk framing included,
unless the client speaks HTTP/1.0. Reading from the worker stops while the client does not keep up.
"""

import re
from functools import lru_cache
from typing import Annotated

import msgspec

from expediter.cluster.client import BodyKind, Inflow, ResponseHead, Usage
from expediter.cluster.decisions import Decision, TransferReport
from expediter.errors import ClusterError
from expediter.gateway.headers import shown
from expediter.gateway.replies import failure_event
from expediter.gateway.request import HttpRequest
from expediter.gateway.server import ClientConnection
from expediter.gateway.story import Story

_TRANSFER = re.compile(rb'"kv_transfer"\s*:\s*(\{[^{}]*\})')
MAX_REMEMBERED_LINES = 1024
LAST_CHUNK = b"0\r\n\r\n"
_USAGE_BYTES = 4096  # a usage object is in the last part of an answer
# Not in what a model writes: quotes within a JSON string are escaped.
_USAGE = re.compile(rb'"(prompt|cached|completion)_tokens"\s*:\s*(\d{1,12})\b')


Count = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class _Counts(msgspec.Struct, gc=False):
    prompt_tokens: Count
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None  # as SGLang's own API has it
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, gc=False):
    usage: _Counts | None = None


_answers = msgspec.json.Decoder(_Answer)


class ClientSink:
    """One answer on its way to one client; see ResponseSink."""

    __slots__ = (
        "_before_last",
        "_connection",
        "_ends_by_close",
        "_head",
        "_inflow",
        "_is_chunked",
        "_is_event_stream",
        "_last",
        "_request",
        "_request_id",
        "_wraps",
        "decision",
        "has_started",
    )

    def __init__(
        self, connection: ClientConnection, request: HttpRequest, request_id: bytes
    ) -> None:
        self._connection = connection
        self._request = request
        self._request_id = request_id
        self._inflow: Inflow | None = None
        self._wraps = False  # the gateway makes chunks of a body that came without framing
        self._is_chunked = False
        self._ends_by_close = False
        self._is_event_stream = False
        self._before_last = self._last = b""
        self._head = b""  # goes out with the first piece of the body
        self.decision: Decision | None = None
        self.has_started = False

    def placed(self, decision: Decision) -> None:
        """Remember whom to name in the headers."""
        self.decision = decision

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:
        """Write the head."""
        self.has_started = True
        self._inflow = inflow
        connection, request = self._connection, self._request
        connection.on_writable = self._set_writable
        if not connection.is_writable:
            inflow.pause_reading()
        seen = shown(head)
        self._is_event_stream = seen.is_event_stream
        is_http11 = request.version == "1.1"
        if not seen.names_length:
            self._is_chunked = is_http11
            self._wraps = is_http11 and head.body is BodyKind.UNTIL_CLOSE
            self._ends_by_close = not is_http11
            if not is_http11:
                request.keeps_alive = False
        lines, own, named = seen.lines, self._own_lines(), self._request_id
        if seen.names_request:
            self._head = b"".join((lines, own, b"\r\n"))
        else:
            self._head = b"".join((lines, b"x-request-id: ", named, b"\r\n", own, b"\r\n"))
        return is_http11

    def write(self, data: bytes) -> None:
        """Pass some of the body on."""
        self._before_last, self._last = self._last, data
        if self._wraps:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        self._connection.write(data)

    def end(self) -> None:
        """Finish the framing, if it is the gateway's."""
        if self._wraps or self._head:
            self._connection.write(self._head + (LAST_CHUNK if self._wraps else b""))
        self._connection.on_writable = None
        self._inflow = None  # which holds this sink: nothing is left for the garbage collector

    def tell(self, story: Story) -> None:
        """What was seen of the answer."""
        decision = story.decision = self.decision
        if self.has_started and decision is not None and decision.status is not None:
            story.status = decision.status

    def fail(self, error: ClusterError) -> None:
        """Break off so that the client can tell: by an event in a stream, else by the framing."""
        assert self._inflow is not None
        takes_chunk = self._is_chunked and (self._wraps or self._inflow.is_between_chunks)
        if not (self._is_event_stream and (takes_chunk or self._ends_by_close)):
            # The connection closes before the end that the head promised. Where closing is the
            # end, only a reset tells.
            self._request.keeps_alive = False
            if self._ends_by_close:
                self._connection.reset()
            return
        # A whole answer, so the connection stays: the client may use it again at once.
        event = failure_event(error)
        if self._is_chunked:
            event = b"%x\r\n%b\r\n%b" % (len(event), event, LAST_CHUNK)
        self._connection.write(event)

    def usage(self) -> Usage | None:
        """See ResponseSink; an answer says it at its end, if at all."""
        tail = self._last[-_USAGE_BYTES:]
        if self._before_last:
            tail = self._before_last[-_USAGE_BYTES:] + tail
        counts = _counts(tail)
        if counts is None:
            return None
        cached, details = counts.cached_tokens, counts.prompt_tokens_details
        decision = self.decision
        has_transfer = decision is not None and decision.prefill_worker_id is not None
        return Usage(
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=cached if details is None else details.cached_tokens,
            output_tokens=counts.completion_tokens,
            transfer=_transfer(tail) if has_transfer else None,
        )

    def _set_writable(self, is_writable: bool) -> None:
        assert self._inflow is not None
        if is_writable:
            self._inflow.resume_reading()
        else:
            self._inflow.pause_reading()

    def _own_lines(self) -> bytes:
        """The decision, and how this hop is framed."""
        decision = self.decision
        assert decision is not None
        lines = _placed_lines(decision.worker_id, decision.reason, decision.matched_tokens)
        if decision.prefill_worker_id is not None or decision.fallback is not None:
            lines += _pair_lines(decision)
        if self._is_chunked:
            lines += b"transfer-encoding: chunked\r\n"
        return lines if self._request.keeps_alive else lines + b"connection: close\r\n"


@lru_cache(MAX_REMEMBERED_LINES)
def _placed_lines(worker_id: str, reason: str, matched_tokens: int) -> bytes:
    """Where the request went, and why: often the same, to the last token of a shared prompt."""
    return (
        b"x-expediter-worker: %b\r\nx-expediter-reason: %b\r\nx-expediter-matched-tokens: %d\r\n"
    ) % (worker_id.encode(), reason.encode(), matched_tokens)


def _pair_lines(decision: Decision) -> bytes:
    """Who computed the prompt, if another worker; and why not, if one should have."""
    lines = b""
    if decision.prefill_worker_id is not None:
        lines = (
            b"x-expediter-prefill-worker: %b\r\nx-expediter-prefill-matched-tokens: %d\r\n"
        ) % (decision.prefill_worker_id.encode(), decision.prefill_matched_tokens)
    if decision.fallback is not None:
        lines += b"x-expediter-fallback: %b\r\n" % decision.fallback.encode()
    return lines


def _transfer(tail: bytes) -> TransferReport | None:
    """What the worker says of KV that it fetched."""
    found = _TRANSFER.findall(tail)
    if not found:
        return None
    try:
        return msgspec.json.decode(found[-1], type=TransferReport)
    except msgspec.DecodeError:
        return None


def _counts(tail: bytes) -> _Counts | None:
    """What an answer's last bytes say of tokens; a whole answer is read, others are searched."""
    if tail.startswith(b"{"):
        try:
            usage = _answers.decode(tail).usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            usage = None
        if usage is not None:
            return usage
    prompt = tail.find(b'"prompt_tokens"')
    if prompt < 0:
        return None
    start = max(0, tail.rfind(b'"usage"', 0, prompt))  # the rest is mostly what was written
    found = {name: int(number) for name, number in _USAGE.findall(tail, start)}
    if b"prompt" not in found:
        return None
    return _Counts(found[b"prompt"], found.get(b"completion"), found.get(b"cached"))
