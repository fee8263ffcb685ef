"""Who gets a request: one worker, or a prefill worker and a decode worker.

Where all workers play both roles, the policy chooses one. Else the request is a pair, if it can be
split and somebody of each pool is there: how, `routing/disaggregated.py` says. What cannot be
split stays with a decode worker; an answer of one token needs none, and stays with a prefill
worker. While a pool is empty the other serves alone, unless its workers cannot (SGLang's).
"""

from collections.abc import Sequence

import msgspec

from expediter.cluster.client import ForwardedRequest
from expediter.cluster.eligible import eligible
from expediter.cluster.handover import Dialect, Splitting
from expediter.cluster.membership import Member, Membership
from expediter.errors import WorkerUnavailable
from expediter.load import WorkerRole
from expediter.routing.disaggregated import Disaggregated
from expediter.routing.outstanding import OTHERS_TOKENS, OutstandingWork
from expediter.routing.policy import LeastLoaded, RoutingPolicy
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

NO_PREFILL_WORKER = "no-prefill-worker"
NO_DECODE_WORKER = "no-decode-worker"


class Placed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`choice` is who answers. `fallback` says why nobody was there to make a pair with."""

    choice: Choice
    prefill: Choice | None = None
    source: Member | None = None  # the prefill worker
    fallback: str | None = None
    costs: dict[str, float] | None = None


class Placement:
    """Chooses; without `splitting`, always one. Its attributes may be replaced at any time."""

    splitting: Splitting | None = None
    slack_tokens = 0

    def __init__(
        self,
        *,
        membership: Membership,
        index: PrefixIndex,
        work: OutstandingWork,
        policy: RoutingPolicy,
    ) -> None:
        self._membership = membership
        self._index = index
        self._work = work
        self._by_load = LeastLoaded()
        self._members: Sequence[Member] = ()  # of the view without loads
        self._unloaded = ClusterView(workers=())
        self.policy = policy

    def candidates(self, request: RoutedRequest) -> Sequence[Member]:
        """The workers that may get the request now; each role's as if it were alone."""
        membership, model = self._membership, request.model
        if model is None:
            return membership.ready()
        serving = membership.serving(model)
        if not membership.is_adapter(model):
            return serving
        if membership.has_roles and self.splitting is not None:
            pools = ([m for m in serving if m.role is role] for role in WorkerRole)
            return [member for pool in pools for member in self._eligible(pool, model)]
        return self._eligible(serving, model)

    def _eligible(self, members: Sequence[Member], model: str) -> Sequence[Member]:
        return eligible(members, model, load=self._load_tokens, slack_tokens=self.slack_tokens)

    def place(
        self, request: RoutedRequest, forwarded: ForwardedRequest, candidates: Sequence[Member]
    ) -> Placed:
        """Raises WorkerUnavailable if none of the candidates can serve without others."""
        if self._membership.has_roles and any(m.role is not WorkerRole.BOTH for m in candidates):
            return self._place_by_role(request, forwarded, candidates)
        return Placed(choice=self._choose(request, candidates))

    def _place_by_role(
        self, request: RoutedRequest, forwarded: ForwardedRequest, candidates: Sequence[Member]
    ) -> Placed:
        prefill = [m for m in candidates if m.role is not WorkerRole.DECODE]
        decode = [m for m in candidates if m.role is not WorkerRole.PREFILL]
        if not prefill or not decode:
            fallback = NO_DECODE_WORKER if prefill else NO_PREFILL_WORKER
            return self._alone(request, prefill or decode, fallback=fallback)
        dialect = _dialect(prefill, decode)
        splitting = self.splitting
        if splitting is None or dialect is None or not splitting.bodies.may_split(forwarded):
            return self._alone(request, decode)
        if dialect.serves_alone and request.max_output_tokens == 1:
            return self._alone(request, prefill)
        if dialect.serves_alone and not splitting.bodies.has_one_prompt(forwarded):
            return self._alone(request, decode)
        sources = [m for m in prefill if m.peer.dialect is dialect]
        targets = [m for m in decode if m.peer.dialect is dialect]
        return self._pair(request, sources, targets, splitting.policy)

    def _alone(
        self, request: RoutedRequest, members: Sequence[Member], *, fallback: str | None = None
    ) -> Placed:
        able = [m for m in members if m.role is WorkerRole.BOTH or m.peer.dialect.serves_alone]
        if not able:
            raise WorkerUnavailable(f"no worker is ready that can serve this alone: {fallback}")
        return Placed(choice=self._choose(request, able), fallback=fallback)

    def _pair(
        self,
        request: RoutedRequest,
        sources: Sequence[Member],
        targets: Sequence[Member],
        policy: Disaggregated,
    ) -> Placed:
        dialect = sources[0].peer.dialect
        found = policy.choose(
            request,
            prefill=self._view(request, sources),
            decode=self._view(request, targets),
            waits_for_transfer=dialect is not Dialect.EXPEDITER,
            must_split=not dialect.serves_alone,
        )
        if found.prefill is None:
            return Placed(choice=found.decode, costs=dict(found.costs))
        return Placed(
            choice=found.decode,
            prefill=found.prefill,
            source=next(m for m in sources if m.worker_id == found.prefill.worker_id),
            costs=dict(found.costs),
        )

    def _load_tokens(self, member: Member) -> float:
        """Work outstanding there, whoever sent it."""
        return self._work.tokens(member.worker_id) + member.num_others * OTHERS_TOKENS

    def _choose(self, request: RoutedRequest, members: Sequence[Member]) -> Choice:
        policy = self.policy
        if request.prompt is None and policy.uses_prefixes:
            policy = self._by_load
        if policy.uses_loads or request.prompt is not None:
            return policy.choose(request, self._view(request, members))
        if members is not self._members:  # most often they are those of the last request
            self._members = members
            self._unloaded = ClusterView(workers=[member.unloaded for member in members])
        return policy.choose(request, self._unloaded)

    def _view(self, request: RoutedRequest, members: Sequence[Member]) -> ClusterView:
        known, make = self._work.views.get, self._worker_view
        workers = [(not m.num_others and known(m.worker_id)) or make(m) for m in members]
        if request.prompt is None:
            return ClusterView(workers=workers)
        matched = self._index.match(request.prompt)
        if matched:
            matched = {w.worker_id: matched[w.worker_id] for w in workers if w.worker_id in matched}
        return ClusterView(workers=workers, matched=matched)

    def _worker_view(self, member: Member) -> WorkerView:
        view = self._work.view(member.worker_id) or member.unloaded
        if not member.num_others:
            return view
        return WorkerView(
            worker_id=member.worker_id,
            load_tokens=view.load_tokens + member.num_others * OTHERS_TOKENS,
            num_requests=view.num_requests + member.num_others,
            prefill_tokens=view.prefill_tokens,
        )


def _dialect(prefill: Sequence[Member], decode: Sequence[Member]) -> Dialect | None:
    """One that somebody of both pools speaks."""
    known = {member.peer.dialect for member in decode}
    for member in prefill:
        if member.peer.dialect in known:
            return member.peer.dialect
    return None
