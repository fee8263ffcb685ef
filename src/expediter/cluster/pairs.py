"""The prefill worker's part in a request that two workers serve.

    vllm        computes the prompt first; its answer names the KV, and goes with the request to
                the decode worker
    expediter   computes it while the decode worker waits for it, and sends it layer by layer
    sglang      the same, but neither can do without the other: if one fails, both are given up

When the prefill worker fails, a vLLM decode worker gets the request as it came, and our own
computes the prompt by itself. A prefill worker that says the request is wrong (4xx) has the last
word. A decode worker that answers 5xx, or whose stream has not begun when the blocks are no longer
kept, gets the request once more without the other's KV. What nobody fetches stays with vLLM's
prefill worker until its lease is over: that is what happens when a client leaves between the two.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from expediter.clock import Clock
from expediter.cluster.client import ForwardedRequest
from expediter.cluster.decisions import Decision, DecisionLog
from expediter.cluster.handed import Collected, Fetching, Handed, PrefillRefused
from expediter.cluster.handover import Dialect, Splitting
from expediter.cluster.leg import Legs
from expediter.cluster.membership import Member
from expediter.cluster.merging import Merging
from expediter.errors import WorkerLost, WorkerSilent
from expediter.routing.view import RoutedRequest

DRAIN_SECONDS = 0.1  # for a prefill worker's answer, once the decode worker's is complete
_ASK_VLLM = msgspec.json.encode(
    {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
)


class Pair(msgspec.Struct, frozen=True):
    """A request that two workers serve; `source` is the one that computes the prompt."""

    request: RoutedRequest
    decision: Decision
    forwarded: ForwardedRequest
    source: Member


class Pairs:
    """Frames the decode worker's part with the prefill worker's."""

    def __init__(self, splitting: Splitting, *, legs: Legs, log: DecisionLog, clock: Clock) -> None:
        self._bodies = splitting.bodies
        self._policy = splitting.policy
        self._lease_seconds = splitting.lease_seconds
        self._legs = legs
        self._log = log
        self._clock = clock

    @asynccontextmanager
    async def prefilled(self, pair: Pair) -> AsyncIterator[Handed]:
        """What the decode worker is to be sent; the prefill worker's part is over with the block.

        Raises PrefillRefused. For sglang, the block is cancelled if the prefill worker fails, and
        that is raised, as WorkerLost or WorkerSilent.
        """
        if pair.source.peer.dialect is Dialect.VLLM:
            yield await self._before(pair)
            return
        decode: Handed
        if pair.source.peer.dialect is Dialect.SGLANG:
            forwarded, decode = self._bootstrapped(pair)
        else:
            forwarded, decode = self._meeting(pair)
        try:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(self._beside(pair, forwarded, decode))
                yield decode
                await asyncio.wait((task,), timeout=DRAIN_SECONDS)
                task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _before(self, pair: Pair) -> Handed:
        """The prefill worker first, and to the end of its answer."""
        forwarded = self._bodies.prefill_leg(pair.forwarded, _ASK_VLLM, is_first_token=False)
        answer = await self._prefill(pair, forwarded)
        if answer is None or answer.status >= 500:
            self._log.fell_back(pair.decision, "prefill-failed")
            return pair.forwarded
        if answer.status >= 300:
            raise PrefillRefused(answer)
        params = self._bodies.params_of(answer.body)
        if params is None:
            self._log.fell_back(pair.decision, "nothing-to-fetch")
            return pair.forwarded
        decode = self._bodies.decode_leg(pair.forwarded, params)
        is_streamed = self._bodies.is_streamed(pair.forwarded)
        return Fetching(decode, seconds=self._lease_seconds if is_streamed else None)

    async def _beside(self, pair: Pair, forwarded: ForwardedRequest, decode: Handed) -> None:
        """The prefill worker, while the decode worker waits for it until it can answer.

        Raises what must end the decode worker's part.
        """
        answer = await self._prefill(pair, forwarded)
        decision = pair.decision
        if isinstance(decode, Merging):
            decode.prefilled(answer.body if answer is not None and answer.status < 300 else b"")
        if (answer is not None and answer.status < 300) or decision.status is not None:
            return
        if pair.source.peer.dialect is not Dialect.SGLANG:
            self._log.fell_back(decision, "prefill-failed")
        elif answer is not None and answer.status < 500:
            raise PrefillRefused(answer)
        else:
            decision.prefill_error = decision.prefill_error or "server_error"
            raise WorkerLost(f"{pair.source.worker_id} did not compute the prompt")

    def _bootstrapped(self, pair: Pair) -> tuple[ForwardedRequest, Handed]:
        """The same for both, and who puts the answers together if one is not enough."""
        forwarded = self._bodies.bootstrap_leg(pair.forwarded, pair.source.peer)
        merge = self._bodies.merge_of(pair.forwarded)
        if merge is None:
            return forwarded, forwarded
        is_streamed = self._bodies.is_streamed(pair.forwarded)
        return forwarded, Merging(forwarded, merge=merge, is_streamed=is_streamed)

    def _meeting(self, pair: Pair) -> tuple[ForwardedRequest, ForwardedRequest]:
        """The two requests by which our own workers meet."""
        transfer_id, peer = uuid.uuid4().hex, pair.source.peer
        source = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        target = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": transfer_id,
            "remote_engine_id": peer.engine_id,
            "remote_host": peer.host,
            "remote_port": peer.port,
        }
        return (
            self._bodies.prefill_leg(
                pair.forwarded, msgspec.json.encode(source), is_first_token=True
            ),
            self._bodies.decode_leg(pair.forwarded, msgspec.json.encode(target)),
        )

    async def _prefill(self, pair: Pair, forwarded: ForwardedRequest) -> Collected | None:
        """The prefill worker's whole answer; None, and a word in the decision, if there is none."""
        request, decision = pair.request, pair.decision
        answer, began_at, is_computed = Collected(), self._clock(), False
        self._policy.begin(
            request, worker_id=pair.source.worker_id, num_held=decision.prefill_matched_tokens
        )
        leg = self._legs.open(
            pair.source,
            request,
            prefill_tokens=request.num_tokens - decision.prefill_matched_tokens,
            max_output_tokens=1,
        )
        try:
            exchange = await pair.source.client.send(forwarded, answer)
            leg.began(exchange)
            await exchange.ended()
            leg.succeeded(exchange)
            is_computed = answer.status < 300
        except (WorkerLost, WorkerSilent) as error:
            leg.failed(error)
            decision.prefill_error = error.kind
            return None
        finally:
            leg.close()
            self._policy.end(request.request_id, is_computed=is_computed)
        decision.prefill_seconds = self._clock() - began_at
        usage = self._bodies.usage_of(answer.body) if is_computed else None
        if usage is not None and usage.cached_tokens is not None:
            self._log.prefilled(
                decision, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
            )
        return answer
