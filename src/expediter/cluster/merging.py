"""A decode worker's answer that needs something of the prefill worker's to be whole.

A whole answer is kept until both are there. A stream goes on event by event: the first ones wait
until the prefill worker's answer is complete, which it nearly is when they come.
"""

import asyncio

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

FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_EVENT_END = b"\n\n"


class Merging:
    """A request whose answer is made of two. Whoever has the prefill worker's tells `prefill`."""

    def __init__(self, forwarded: ForwardedRequest, *, merge: Merge, is_streamed: bool) -> None:
        self._forwarded = forwarded
        self._merge = merge
        self._is_streamed = is_streamed
        self._prefill: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def prefilled(self, answer: bytes) -> None:
        """The prefill worker's answer; empty if there is none, and then nothing is added."""
        if not self._prefill.done():
            self._prefill.set_result(answer)

    async def send(self, leg: Leg, sink: ResponseSink) -> Exchange:
        """As WorkerClient's `send`."""
        merged = _MergedSink(
            sink, merge=self._merge, prefill=self._prefill, is_streamed=self._is_streamed
        )
        self._prefill.add_done_callback(lambda _: merged.go_on())
        exchange = await leg.member.client.send(self._forwarded, merged)
        return _MergedExchange(exchange, prefill=self._prefill)


class _MergedExchange:
    """Is over when all that was kept back has gone out."""

    is_complete = False

    def __init__(self, exchange: Exchange, *, prefill: asyncio.Future[bytes]) -> None:
        self._exchange = exchange
        self._prefill = prefill

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
            await asyncio.wait([self._prefill])  # the sink, which asked first, is told first


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
        merge: Merge,
        prefill: asyncio.Future[bytes],
        is_streamed: bool,
    ) -> None:
        self._sink = sink
        self._merge = merge
        self._prefill = prefill
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
            headers = [header for header in head.headers if header[0] not in FRAMING]
            unframed = replace(head, headers=headers, body=BodyKind.UNTIL_CLOSE, length=0)
            self._sink.start(unframed, inflow)
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
        if self._is_over or self._is_plain or not self._prefill.done():
            return
        if self._prefill.cancelled():
            return
        prefill = self._prefill.result()
        if self._is_streamed:
            self._pass_events(prefill)
        elif self._has_ended:
            self._pass_whole(prefill)

    def _pass_events(self, prefill: bytes) -> None:
        *events, self._kept = self._kept.split(_EVENT_END)
        for event in events:
            self._sink.write(self._merge(event, prefill) + _EVENT_END)
        if self._has_ended:
            self._is_over = True
            if self._kept:
                self._sink.write(self._kept)
            self._sink.end()

    def _pass_whole(self, prefill: bytes) -> None:
        self._is_over = True
        body = self._merge(self._kept, prefill)
        head = self._head
        headers = [header for header in head.headers if header[0] not in FRAMING]
        headers.append((b"content-length", b"%d" % len(body)))
        whole = replace(head, headers=headers, body=BodyKind.LENGTH, length=len(body))
        self._sink.start(whole, self._inflow)
        if body:
            self._sink.write(body)
        self._sink.end()
