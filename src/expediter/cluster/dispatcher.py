"""The story of a request: place it, send it, and if its worker fails, try another or give up.

One worker serves it, or two: then a prefill worker's part frames the decode worker's, whose answer
is the client's (`pairs.py`). What every part of it has in common is in `leg.py`.

A request goes to another worker only if nothing of an answer has arrived, never twice to the
same worker, and not if its worker was merely silent: it may be working on it. How many are sent
again is limited (`retry_budget.py`). Workers' own errors (any HTTP status) are answers, and the
client's to deal with; but those that a broken worker gives to everybody count against it.
"""

import logging

from expediter.clock import Clock
from expediter.cluster.client import ForwardedRequest, ResponseSink, Usage
from expediter.cluster.decisions import FETCH_FAILED, LEASE_OVER, Decision, DecisionLog
from expediter.cluster.errand import in_task
from expediter.cluster.handed import Handed, PrefillRefused
from expediter.cluster.handover import Splitting
from expediter.cluster.leg import Legs
from expediter.cluster.membership import Membership
from expediter.cluster.pairs import Pair, Pairs
from expediter.cluster.placement import Placed, Placement
from expediter.cluster.predictions import Predictions
from expediter.cluster.retry_budget import RetryBudget
from expediter.cluster.traffic import TrafficLog
from expediter.config import RoutingConfig
from expediter.errors import (
    LeaseExpired,
    TransferError,
    WorkerLost,
    WorkerSilent,
    WorkerUnavailable,
)
from expediter.load import WorkerId
from expediter.routing.feedback import Failed, Finished, FirstToken, Learner
from expediter.routing.outstanding import OutstandingWork
from expediter.routing.policy import RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.view import RoutedRequest

logger = logging.getLogger(__name__)


class Dispatcher:
    """Sends requests to workers; one call of `dispatch` is one request."""

    def __init__(
        self,
        *,
        membership: Membership,
        index: PrefixIndex,
        policy: RoutingPolicy,
        config: RoutingConfig,
        clock: Clock,
        work: OutstandingWork | None = None,
    ) -> None:
        """`work` counts what is in flight; one that other processes see too, if several serve."""
        self._membership = membership
        self._clock = clock
        self.work = work or OutstandingWork()
        self.log = DecisionLog()
        self._legs = Legs(membership=membership, index=index, work=self.work)
        self._placement = Placement(
            membership=membership, index=index, work=self.work, policy=policy
        )
        self._pairs: Pairs | None = None
        self.use(policy, config)
        self.traffic = TrafficLog(clock=clock)
        self.predictions = Predictions(num_answers=membership.relearn_answers, clock=clock)
        membership.count_known_by(self.work.num_requests)

    def split(self, splitting: Splitting) -> None:
        """From now on, serve requests with two workers where there are roles for it."""
        self._placement.splitting = splitting
        self._pairs = Pairs(splitting, legs=self._legs, log=self.log, clock=self._clock)

    @property
    def uses_prefixes(self) -> bool:
        """Whether requests are placed by their prompts."""
        return self._policy.uses_prefixes or self._membership.has_roles

    def use(self, policy: RoutingPolicy, config: RoutingConfig) -> None:
        """Place by this policy from now on; what runs is not moved."""
        self._policy = self._placement.policy = policy
        self._learner = policy if isinstance(policy, Learner) else None
        self._membership.teach(self._learner)
        self.session_header = config.session_header.encode()
        self._retries = RetryBudget(config.retries, clock=self._clock)
        self._placement.slack_tokens = config.slack_tokens
        self._legs.assumed_seconds = config.assumed_seconds

    async def dispatch(
        self, request: RoutedRequest, forwarded: ForwardedRequest, sink: ResponseSink
    ) -> Decision:
        """Returns when the answer is complete in the sink.

        Raises WorkerUnavailable, WorkerLost or WorkerSilent. If the sink was started, part of
        an answer has gone out; otherwise nothing has.
        """
        tried: tuple[WorkerId, ...] = ()
        failure: WorkerLost | None = None
        self._retries.earn()
        while True:
            placed = self._place(request, forwarded, tried, failure)
            decision = self._decide(request, placed, num_tries=len(tried) + 1)
            try:
                if placed.source is None:
                    await self._serve(request, decision, forwarded, sink)
                else:
                    pair = Pair(request, decision, forwarded, placed.source)
                    await in_task(self._serve_pair(pair, sink))
            except WorkerLost as error:
                if decision.status is not None:
                    raise
                tried = (*tried, decision.lost_worker_id)
                failure = error
            else:
                return decision

    def adapter(self, model: str | None) -> str | None:
        """The model's name if it is an adapter, whose KV is its own; None for a base model."""
        if model is None:
            return None
        return model if self._membership.is_adapter(model) else None

    def _place(
        self,
        request: RoutedRequest,
        forwarded: ForwardedRequest,
        tried: tuple[WorkerId, ...],
        failure: WorkerLost | None,
    ) -> Placed:
        """Raises WorkerUnavailable if there is nobody left, or too many requests fail already."""
        candidates = self._placement.candidates(request)
        if tried:
            candidates = [m for m in candidates if m.worker_id not in tried]
        if not candidates:
            self.log.num_unplaced += 1
            raise failure or WorkerUnavailable("no worker is ready")
        if failure is not None and not self._retries.take():
            self.log.num_retries_refused += 1
            raise WorkerUnavailable(f"too many requests fail to try again: {failure}")
        return self._placement.place(request, forwarded, candidates)

    def _decide(self, request: RoutedRequest, placed: Placed, *, num_tries: int) -> Decision:
        choice, prefill = placed.choice, placed.prefill
        decision = Decision(
            request_id=request.request_id,
            worker_id=choice.worker_id,
            reason=choice.reason,
            num_tokens=request.num_tokens,
            matched_tokens=choice.matched_tokens,
            scores=choice.scores,
            placed_at=self._clock(),
            num_tries=num_tries,
            costs=placed.costs,
        )
        if prefill is not None:
            decision.prefill_worker_id = prefill.worker_id
            decision.prefill_matched_tokens = prefill.matched_tokens
        self.log.add(decision)
        if placed.fallback is not None:
            self.log.fell_back(decision, placed.fallback)
        return decision

    async def _serve_pair(self, pair: Pair, sink: ResponseSink) -> None:
        """One try at two workers."""
        assert self._pairs is not None, "placed as a pair"
        request, decision = pair.request, pair.decision
        try:
            async with self._pairs.prefilled(pair) as handed:
                try:
                    await self._serve(request, decision, handed, sink)
                except TransferError as error:
                    is_over = isinstance(error, LeaseExpired)
                    self.log.fell_back(decision, LEASE_OVER if is_over else FETCH_FAILED)
                    await self._serve(request, decision, pair.forwarded, sink)
        except PrefillRefused as refused:
            sink.placed(decision)
            self.log.first_byte(decision, status=refused.answer.status, now=self._clock())
            refused.answer.pass_on(sink)

    async def _serve(
        self, request: RoutedRequest, decision: Decision, handed: Handed, sink: ResponseSink
    ) -> None:
        """One try at the worker that answers."""
        # A pair's prompt is computed elsewhere, as far as is known.
        is_pair = decision.prefill_worker_id is not None and decision.fallback is None
        num_new = 0 if is_pair else decision.num_tokens - decision.matched_tokens
        leg = self._legs.open(
            self._membership.members[decision.worker_id],
            request,
            prefill_tokens=num_new,
            max_output_tokens=request.max_output_tokens,
        )
        try:
            sink.placed(decision)
            if isinstance(handed, ForwardedRequest):
                exchange = await leg.member.client.send(handed, sink)
            else:
                exchange = await handed.send(leg, sink)
            status = leg.began(exchange)
            self.log.first_byte(decision, status=status, now=self._clock())
            if status < 300 and self._learner is not None:
                self._learner.observe(FirstToken(request_id=request.request_id))
            if not exchange.is_complete:
                await exchange.ended()
            leg.succeeded(exchange)
            if status < 300:
                self._answered(request, decision, sink.usage())
        except (WorkerLost, WorkerSilent) as error:
            leg.failed(error)
            self.log.failed(decision, error.kind)
            raise
        finally:
            leg.close()
            if self._learner is not None and not decision.is_answered:
                self._learner.observe(Failed(request_id=request.request_id))

    def _answered(self, request: RoutedRequest, decision: Decision, usage: Usage | None) -> None:
        """The answer is complete, and not an error, of which there would be nothing to learn."""
        decision.is_answered = True
        if usage is not None:
            decision.prompt_tokens = usage.prompt_tokens
            decision.output_tokens = usage.output_tokens
            if usage.transfer is not None:
                self.log.transferred(decision, usage.transfer)
            # What another worker sent counts as cached too, which says nothing of what was known.
            if usage.cached_tokens is not None and decision.prefill_worker_id is None:
                self._compare(decision, usage.prompt_tokens, usage.cached_tokens)
        num_prompt_tokens = decision.prompt_tokens or decision.num_tokens
        if num_prompt_tokens:  # what has no body is no traffic
            self.traffic.add(
                request.prompt,
                arrived_at=decision.placed_at,
                num_prompt_tokens=num_prompt_tokens,
                # one of unknown length is as long as it may be
                num_output_tokens=decision.output_tokens or request.max_output_tokens or 1,
            )
        if self._learner is not None:
            self._learner.observe(
                Finished(
                    request_id=request.request_id,
                    cached_tokens=usage.cached_tokens if usage is not None else None,
                    output_tokens=usage.output_tokens if usage is not None else None,
                )
            )

    def _compare(self, decision: Decision, prompt_tokens: int, cached_tokens: int) -> None:
        """Hold what was predicted against what its worker says it had cached."""
        self.log.answered(decision, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
        if self.predictions.disagrees(
            decision, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens
        ):
            logger.warning(
                "%s has much less cached than was known of it: learnt anew", decision.worker_id
            )
            self._membership.relearn(decision.worker_id)
