"""The story of a request: place it, send it, and if its worker fails, try another or give up.

A request goes to another worker only if nothing of an answer has arrived, never twice to the
same worker, and not if its worker was merely silent: it may be working on it. How many are sent
again is limited (`retry_budget.py`). Workers' own errors (any HTTP status) are answers, and the
client's to deal with; but those that a broken worker gives to everybody count against it.
"""

import logging
from collections.abc import Sequence

from expediter.clock import Clock
from expediter.cluster.breaker import Ticket
from expediter.cluster.client import ForwardedRequest, ResponseSink, Usage
from expediter.cluster.decisions import Decision, DecisionLog
from expediter.cluster.eligible import eligible
from expediter.cluster.membership import Member, Membership
from expediter.cluster.predictions import Predictions
from expediter.cluster.retry_budget import RetryBudget
from expediter.cluster.traffic import TrafficLog
from expediter.config import RoutingConfig
from expediter.errors import WorkerLost, WorkerSilent, WorkerUnavailable
from expediter.load import WorkerId
from expediter.routing.feedback import Failed, Finished, FirstToken, Learner
from expediter.routing.outstanding import OTHERS_TOKENS, OutstandingWork
from expediter.routing.policy import LeastLoaded, RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

logger = logging.getLogger(__name__)

CONFIRM_SECONDS = 5.0
"""How long a prompt that a worker answered counts as cached there before its events say so.
Events of a prompt's blocks leave the worker before the answer's first byte, so they come in
milliseconds; this only has to outlast them."""

NO_FAULT = frozenset({501, 503})
"""5xx that say nothing against a worker: it cannot do this, or has no room for it now."""


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
        self._index = index
        self._by_load = LeastLoaded()
        self._clock = clock
        self.use(policy, config)
        self.work = work or OutstandingWork()
        self.log = DecisionLog()
        self.traffic = TrafficLog(clock=clock)
        self.predictions = Predictions(num_answers=membership.relearn_answers, clock=clock)
        membership.count_known_by(self.work.num_requests)

    @property
    def uses_prefixes(self) -> bool:
        """Whether requests are placed by their prompts."""
        return self._policy.uses_prefixes

    def use(self, policy: RoutingPolicy, config: RoutingConfig) -> None:
        """Place by this policy from now on; what runs is not moved."""
        self._policy = policy
        self._learner = policy if isinstance(policy, Learner) else None
        self._membership.teach(self._learner)
        self.session_header = config.session_header.encode()
        self._retries = RetryBudget(config.retries, clock=self._clock)
        self._config = config

    async def dispatch(
        self, request: RoutedRequest, forwarded: ForwardedRequest, sink: ResponseSink
    ) -> Decision:
        """Returns when the answer is complete in the sink.

        Raises WorkerUnavailable, WorkerLost or WorkerSilent. If the sink was started, part of
        an answer has gone out; otherwise nothing has.
        """
        tried = set[WorkerId]()
        failure: WorkerLost | None = None
        self._retries.earn()
        while True:
            candidates = self._candidates(request)
            if tried:
                candidates = [m for m in candidates if m.worker_id not in tried]
            if not candidates:
                self.log.num_unplaced += 1
                raise failure or WorkerUnavailable("no worker is ready")
            if failure is not None and not self._retries.take():
                self.log.num_retries_refused += 1
                raise WorkerUnavailable(f"too many requests fail to try again: {failure}")
            decision = self._place(request, candidates, num_tries=len(tried) + 1)
            tried.add(decision.worker_id)
            try:
                await self._serve(request, decision, forwarded, sink)
            except WorkerLost as error:
                if decision.status is not None:
                    raise
                failure = error
            else:
                return decision

    def adapter(self, model: str | None) -> str | None:
        """The model's name if it is an adapter, whose KV is its own; None for a base model."""
        if model is None:
            return None
        return model if self._membership.is_adapter(model) else None

    def _candidates(self, request: RoutedRequest) -> Sequence[Member]:
        return eligible(
            self._membership.ready(),
            request.model,
            load=self._load_tokens,
            slack_tokens=self._config.slack_tokens,
        )

    def _load_tokens(self, member: Member) -> float:
        """Work outstanding there, whoever sent it."""
        return self.work.tokens(member.worker_id) + member.num_others * OTHERS_TOKENS

    def _place(
        self, request: RoutedRequest, candidates: Sequence[Member], *, num_tries: int
    ) -> Decision:
        choice = self._choose(request, candidates)
        decision = Decision(
            request_id=request.request_id,
            worker_id=choice.worker_id,
            reason=choice.reason,
            num_tokens=request.num_tokens,
            matched_tokens=choice.matched_tokens,
            scores=choice.scores,
            placed_at=self._clock(),
            num_tries=num_tries,
        )
        self.log.add(decision)
        return decision

    def _choose(self, request: RoutedRequest, candidates: Sequence[Member]) -> Choice:
        load, work = self._load_tokens, self.work
        workers = [
            WorkerView(
                worker_id=member.worker_id,
                load_tokens=load(member),
                num_requests=work.num_requests(member.worker_id) + member.num_others,
            )
            for member in candidates
        ]
        if request.prompt is None:
            policy = self._by_load if self._policy.uses_prefixes else self._policy
            return policy.choose(request, ClusterView(workers=workers))
        found = self._index.match(request.prompt)
        matched = {w.worker_id: found[w.worker_id] for w in workers if w.worker_id in found}
        return self._policy.choose(request, ClusterView(workers=workers, matched=matched))

    async def _serve(
        self,
        request: RoutedRequest,
        decision: Decision,
        forwarded: ForwardedRequest,
        sink: ResponseSink,
    ) -> None:
        """One try at one worker, with its work counted from start to end."""
        member = self._membership.members[decision.worker_id]
        work = self.work.start(
            member.worker_id,
            prefill_tokens=request.num_tokens - decision.matched_tokens,
            max_output_tokens=request.max_output_tokens,
        )
        ticket = member.begin()
        try:
            sink.placed(decision)
            exchange = await member.client.send(forwarded, sink)
            self.work.prefilled(work)
            self.log.first_byte(decision, status=exchange.status, now=self._clock())
            ticket = _judge(member, ticket, status=exchange.status)
            if exchange.status < 300:
                self._assume(member, request)
                self._teach(FirstToken, request)
            await exchange.ended()
            if exchange.status < 500:
                member.breaker.succeeded(ticket)
            self._answered(request, decision, sink.usage())
        except (WorkerLost, WorkerSilent) as error:
            logger.warning("%s failed request %s: %s", member.worker_id, request.request_id, error)
            self.log.failed(decision, error.kind)
            member.breaker.failed(ticket)
            self._membership.suspect(member.worker_id, error)
            raise
        finally:
            member.breaker.ended(ticket)
            member.end()
            self.work.finish(work)
            if not decision.is_answered:
                self._teach(Failed, request)

    def _answered(self, request: RoutedRequest, decision: Decision, usage: Usage | None) -> None:
        """The answer is complete; an error is one too, but nothing to learn from."""
        if decision.status is None or decision.status >= 300:
            return
        decision.is_answered = True
        if usage is not None:
            decision.prompt_tokens = usage.prompt_tokens
            decision.output_tokens = usage.output_tokens
        self._record(request, decision)
        if usage is not None and usage.cached_tokens is not None:
            self._compare(decision, usage.prompt_tokens, usage.cached_tokens)
        if self._learner is not None:
            self._learner.observe(
                Finished(
                    request_id=request.request_id,
                    cached_tokens=usage.cached_tokens if usage is not None else None,
                    output_tokens=usage.output_tokens if usage is not None else None,
                )
            )

    def _record(self, request: RoutedRequest, decision: Decision) -> None:
        """An answer of unknown length is as long as it may be; what has no body is no traffic."""
        num_prompt_tokens = decision.prompt_tokens or request.num_tokens
        if num_prompt_tokens:
            self.traffic.add(
                request.prompt,
                arrived_at=decision.placed_at,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=decision.output_tokens or request.max_output_tokens or 1,
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

    def _teach(self, event: type[FirstToken | Failed], request: RoutedRequest) -> None:
        """Tell a policy that learns; others cost nothing here."""
        if self._learner is not None:
            self._learner.observe(event(request_id=request.request_id))

    def _assume(self, member: Member, request: RoutedRequest) -> None:
        """The worker answered, so it has the prompt's blocks."""
        if request.prompt is None:
            return
        is_confirmed = member.publishes_events and not request.prompt.is_text
        seconds = CONFIRM_SECONDS if is_confirmed else self._config.assumed_seconds
        self._index.assume(member.worker_id, request.prompt, seconds=seconds)


def _judge(member: Member, ticket: Ticket, *, status: int) -> Ticket:
    """Tell the breaker of an answer's status."""
    if status >= 500 and status not in NO_FAULT:
        member.breaker.failed(ticket)
        return ticket
    return member.breaker.answered(ticket)
