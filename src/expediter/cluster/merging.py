"""A decode worker's answer that needs something of the prefill worker's to be whole.

A whole answer is kept until both are there. A stream goes on event by event: the first ones wait
until the prefill worker's answer is complete, which it nearly is when they come.
"""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from expediter.cluster.client import (
    BodyKind,
    Exchange,
    ForwardedRequest,
    Inflow,
    ResponseHead,
    ResponseSink,
)
from expediter.cluster.handover import Merge
from expediter.cluster.leg import Leg

Merged = Callable[[bytes], bytes]

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_EVENT_END = b"\n\n"


class Merging:
    """A request whose answer is made of two. Whoever has the prefill worker's tells `prefill`."""

    def __init__(self, forwarded: ForwardedRequest, *, merge: Merge, is_streamed: bool) -> None:
        self._forwarded = forwarded
        self._merge = merge
        self._is_streamed = is_streamed
        self._merged: asyncio.Future[Merged] = asyncio.get_running_loop().create_future()

    def prefilled(self, answer: bytes) -> None:
        """The prefill worker's answer; empty if there is none, and then nothing is added."""
        if not self._merged.done():
            self._merged.set_result(self._merge(answer))

    async def send(self, leg: Leg, sink: ResponseSink) -> Exchange:
        """As WorkerClient's `send`."""
        merged_sink = _MergedSink(sink, merged=self._merged, is_streamed=self._is_streamed)
        self._merged.add_done_callback(lambda _: merged_sink.go_on())
        exchange = await leg.member.client.send(self._forwarded, merged_sink)
        return _MergedExchange(exchange, merged=self._merged)


class _MergedExchange:
    """Is over when all that was kept back has gone out."""

    is_complete = False

    def __init__(self, exchange: Exchange, *, merged: asyncio.Future[Merged]) -> None:
        self._exchange = exchange
        self._merged = merged

    @property
    def status(self) -> int:
        """See `Exchange`."""
        return self._exchange.status

    @property
    def is_empty(self) -> bool:
        """See `Exchange`."""
        return self._exchange.is_empty

    async def ended(self) -> None:
        """See `Exchange`."""
        await self._exchange.ended()
        if self.status < 300:
            await asyncio.wait([self._merged])  # the sink, which asked first, is told first


class _MergedSink:
    """Keeps bytes back until they can be merged. An error's answer is passed on as it is."""

    _head: ResponseHead
    _is_plain = False
    _has_ended = False
    _is_over = False

    def __init__(
        self,
        sink: ResponseSink,
        *,
        merged: asyncio.Future[Merged],
        is_streamed: bool,
    ) -> None:
        self._sink = sink
        self._merged = merged
        self._is_streamed = is_streamed
        self._kept = b""
        self.placed = sink.placed
        self.usage = sink.usage

    def start(self, head: ResponseHead, inflow: Inflow) -> bool:
        """See ResponseSink."""
        self._head, self._inflow = head, inflow
        if head.status >= 300:
            self._is_plain = True
            return self._sink.start(head, inflow)
        if self._is_streamed:
            unframed = [header for header in head.headers if header[0] not in _FRAMING]
            self._sink.start(
                replace(head, headers=unframed, body=BodyKind.UNTIL_CLOSE, length=0), inflow
            )
        return False

    def write(self, data: bytes) -> None:
        """See ResponseSink."""
        if self._is_plain:
            self._sink.write(data)
        else:
            self._kept += data
            self.go_on()

    def end(self) -> None:
        """See ResponseSink."""
        self._has_ended = True
        if self._is_plain:
            self._sink.end()
        else:
            self.go_on()

    def go_on(self) -> None:
        """Pass on what can be, now that there is more of one answer or all of the other."""
        if self._is_over or self._is_plain or not self._merged.done() or self._merged.cancelled():
            return
        merged = self._merged.result()
        if self._is_streamed:
            self._pass_events(merged)
        elif self._has_ended:
            self._pass_whole(merged)

    def _pass_events(self, merged: Merged) -> None:
        *events, self._kept = self._kept.split(_EVENT_END)
        for event in events:
            self._sink.write(merged(event) + _EVENT_END)
        if self._has_ended:
            self._is_over = True
            if self._kept:
                self._sink.write(self._kept)
            self._sink.end()

    def _pass_whole(self, merged: Merged) -> None:
        self._is_over = True
        pass_whole(self._head, merged(self._kept), self._sink, self._inflow)


def pass_whole(head: ResponseHead, body: bytes, sink: ResponseSink, inflow: Inflow) -> None:
    """An answer that is all there, into a sink, framed by its length however it came."""
    headers = [header for header in head.headers if header[0] not in _FRAMING]
    headers.append((b"content-length", b"%d" % len(body)))
    sink.start(replace(head, headers=headers, body=BodyKind.LENGTH, length=len(body)), inflow)
    if body:
        sink.write(body)
    sink.end()
