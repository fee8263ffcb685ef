"""One request at one simulated worker: what goes there, and what comes back.

Outputs are handed on as they come, or after the network's delay; nothing of them is bytes but
what the other worker of a pair has to read.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from expediter.cluster.client import BodyKind, ForwardedRequest, ResponseHead, ResponseSink
from expediter.cluster.decisions import TransferReport
from expediter.cluster.errand import Pause
from expediter.errors import ClusterError
from expediter.request import FinishReason, Request, RequestOutput
from expediter.simulation.lag import Lags
from expediter.simulation.worker import SimulatedWorker
from expediter.worker.handover.legs import FIELD, Leg, PrefillLeg


class PairStory(Protocol):
    """Who is told what became of a request that two workers serve. Times are the workers'."""

    def prefilled(self, output: RequestOutput, *, now: float) -> None:
        """The prompt was computed by another worker than the one that answers."""
        ...

    def transferred(self, report: TransferReport) -> None:
        """What the worker that answers says of the KV it fetched."""
        ...


class SimulatedRequest(ForwardedRequest, frozen=True, kw_only=True):
    """What goes to a simulated worker instead of bytes.

    `receive` is told of every output, and when it came.
    `params` are `kv_transfer_params` as in a body, or nothing.
    """

    request: Request
    receive: Callable[[RequestOutput, float], None]
    params: bytes = b""
    story: PairStory | None = None


class _Inflow:
    """Nothing flows, so nothing has to be held back."""

    is_between_chunks = True

    def pause_reading(self) -> None:
        """See `Inflow`."""

    def resume_reading(self) -> None:
        """See `Inflow`."""


_INFLOW = _Inflow()


def _head(status: int) -> ResponseHead:
    return ResponseHead(status=status, reason=b"", headers=(), body=BodyKind.UNTIL_CLOSE)


_OK = _head(200)


class SimulatedExchange(Pause):
    """One request at one worker; the peer of `Exchange`. Awaited until something has come."""

    __slots__ = (
        "_delay",
        "_due",
        "_has_ended",
        "_lags",
        "_leg",
        "_loop",
        "_receive",
        "_request",
        "_sink",
        "_story",
        "_worker",
        "failure",
        "has_begun",
        "status",
    )
    is_empty = False
    is_complete = False

    def __init__(
        self,
        forwarded: SimulatedRequest,
        sink: ResponseSink,
        *,
        worker: SimulatedWorker,
        delay: float,
        lags: Lags,
        leg: Leg | None,
    ) -> None:
        self.resume = None
        self.status = 200
        self._story = forwarded.story
        self._leg = leg
        self._request = forwarded.request
        self._receive = forwarded.receive
        self._worker = worker
        self._sink = sink
        self._delay = delay
        self._lags = lags
        self._due = 0.0  # when the last output that is late will be here
        self._loop = asyncio.get_running_loop()
        self.failure: ClusterError | None = None
        self.has_begun = False
        self._has_ended = False

    def take(self, output: RequestOutput | ClusterError) -> None:
        """What the worker sends, which arrives after the network's delay."""
        delay = self._delay + self._lags.of(self._worker.worker_id)
        if self._leg is not None:
            self._tell_prefilled(self._leg, output)
        if delay or self._due:
            self._due = max(self._due, self._loop.time() + delay)
            self._loop.call_at(self._due, self._arrive, output)
        else:
            self._arrive(output)

    def refuse(self, status: int) -> None:
        """The worker answers with an error."""
        self.status = status
        self._begin()
        self._end()

    async def ended(self) -> None:
        """See `Exchange`."""
        if not self._has_ended:
            await self
        if self.failure is not None:
            raise self.failure

    def abort(self) -> None:
        """See `Pause`: the request is given up."""
        self._worker.abort(self._request)

    def _arrive(self, output: RequestOutput | ClusterError) -> None:
        if isinstance(output, ClusterError):
            self.failure = output
            self._has_ended = True
            self._loop.call_soon(self.end)
            return
        reason = output.finish_reason
        if reason is FinishReason.ABORT:  # nobody waits any more for a prompt's KV
            self.refuse(ClusterError.status)
            return
        self._receive(output, self._loop.time())
        if not self.has_begun:
            self._begin()
        if reason is not None:
            if self._leg is not None:
                self._end_leg(self._leg, output)
            self._end()

    def _tell_prefilled(self, leg: Leg, output: RequestOutput | ClusterError) -> None:
        if not isinstance(leg, PrefillLeg) or isinstance(output, ClusterError):
            return
        if self._story is not None and output.finish_reason is not FinishReason.ABORT:
            self._story.prefilled(output, now=self._loop.time())

    def _end_leg(self, leg: Leg, output: RequestOutput) -> None:
        """What the other side of a pair has to know, in the words of the API."""
        if isinstance(leg, PrefillLeg):
            self._sink.write(_prefill_answer(leg, output, self._request.num_prompt_tokens))
        elif self._story is not None:
            report = msgspec.convert(leg.answer_fields["kv_transfer"], TransferReport)
            self._story.transferred(report)

    def _begin(self) -> None:
        self.has_begun = True
        self._sink.start(_OK if self.status == 200 else _head(self.status), _INFLOW)
        self._loop.call_soon(self.end)  # when the worker has told everybody of its step

    def _end(self) -> None:
        self._has_ended = True
        self._sink.end()
        self._loop.call_soon(self.end)


def _prefill_answer(leg: PrefillLeg, output: RequestOutput, num_prompt_tokens: int) -> bytes:
    """The part of the body that gateways read. Blocks are asked of the worker, not told."""
    offer = leg.offer
    if offer is not None:
        offer = {name: value for name, value in offer.items() if name != "remote_block_ids"}
    usage = {
        "prompt_tokens": num_prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
    }
    return msgspec.json.encode({"usage": usage, FIELD: offer})
