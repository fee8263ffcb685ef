"""Preble's E2 (Srivatsa et al., ICLR 2025, Algorithms 1 to 3): exploit a long match, else explore.

    exploit if missed < cached, that is h > T - h      the holder of the longest match with the
                                                       least load cost
    else explore                                       the least load cost of all
    load cost = L + M + P                              seconds of GPU time
      L  work placed on the worker within H                                    (load_window.py)
      M  sum over what LRU would evict there to fit the prompt, of
         PT(evicted) * requests sharing it / requests, both there within H     (worker_cache.py)
      P  PT(missed) on the worker

Before costs, an explored request, a unit of prefill, goes where decoding has the upper hand:
to the highest DecodeRatio above IMBALR. The paper gives neither a formula nor a number. Here the
ratio is the share of the window's prompt tokens that were cached, because a request that is
cached whole is a unit of decoding; IMBALR is 0.7, which the released code uses for that ratio.
Workers too heavy by the rebalancing threshold are left out, else one could draw all cold prompts.

After costs, an exploiting request may still be sent elsewhere: `hot_prefixes.py` and
`rebalancing.py`. What is cached is the view's word; a prompt that was placed and not answered
yet counts as cached where it was sent, so requests that come together stay together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from expediter.clock import Clock
from expediter.load import WorkerId
from expediter.routing import hot_prefixes
from expediter.routing.feedback import (
    Evicted,
    Failed,
    Feedback,
    Finished,
    FirstToken,
    WorkerAdded,
    WorkerRemoved,
)
from expediter.routing.fleet_history import FleetHistory
from expediter.routing.load_window import Placement
from expediter.routing.policy import Turns
from expediter.routing.prefix_forest import Match
from expediter.routing.prompt import BlockKey
from expediter.routing.rebalancing import TH_BAL, is_heavy, moving_pays
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

WINDOW_SECONDS = 180.0
"""H: three minutes."""

IMBALR = 0.7


@dataclass(slots=True, kw_only=True)
class _Case:
    """One request with all that its choice depends on. Costs are seconds by worker."""

    history: FleetHistory
    keys: list[BlockKey]
    match: Match
    num_tokens: int
    cached: dict[WorkerId, int]  # tokens
    loads: dict[WorkerId, float]  # L
    prefill: dict[WorkerId, float]  # P
    evicting: dict[WorkerId, float] = field(default_factory=dict)  # M, once asked for
    workers: dict[WorkerId, WorkerView]

    def extra(self, worker_id: WorkerId) -> float:
        """M + P: what the request itself costs there. M takes a walk, so only on demand."""
        if worker_id not in self.evicting:
            self.evicting[worker_id] = self.history.eviction_seconds(
                worker_id, self.num_tokens - self.cached[worker_id], keep=self.match.path
            )
        return self.evicting[worker_id] + self.prefill[worker_id]

    def cost(self, worker_id: WorkerId) -> float:
        """L + M + P."""
        return self.loads[worker_id] + self.extra(worker_id)

    def scores(self) -> dict[WorkerId, float]:
        """Negative costs as far as they are known."""
        return {
            worker_id: -(load + self.prefill[worker_id] + self.evicting.get(worker_id, 0.0))
            for worker_id, load in self.loads.items()
        }


class PrebleE2:
    """Learns from its choices and from feedback; `observe` should be told of every event."""

    uses_prefixes = True
    uses_loads = True

    def __init__(
        self,
        history: FleetHistory,
        *,
        clock: Clock,
        rebalance_threshold: float = TH_BAL,
        imbalance_ratio: float = IMBALR,
    ) -> None:
        """An `imbalance_ratio` of 1 turns the prefill/decode balance off."""
        self._history = history
        self._clock = clock
        self._cost = history.cost
        self._rebalance_threshold = rebalance_threshold
        self._imbalance_ratio = imbalance_ratio
        self._turns = Turns()

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        """Reasons: exploit, split, replicate, rebalance; explore, balance.

        Scores are -(L + M + P), without M for workers that an exploiting request passes over.
        """
        now = self._clock()
        self._history.expire(now)
        case = self._case(request, view)
        cached = max(case.cached.values())
        exploits = case.num_tokens - cached < cached
        worker, reason = self._exploit(case, cached) if exploits else self._explore(case)
        self._turns.take(worker.worker_id)
        self._history.place(
            Placement(
                request_id=request.request_id,
                worker_id=worker.worker_id,
                placed_at=now,
                num_tokens=case.num_tokens,
                cached_tokens=case.cached[worker.worker_id],
            ),
            case.keys,
            case.match,
        )
        return Choice(
            worker_id=worker.worker_id,
            matched_tokens=view.matched_tokens(worker.worker_id),
            reason=reason,
            scores=case.scores(),
        )

    def observe(self, feedback: Feedback) -> None:
        """Every kind of feedback tells this policy something."""
        history = self._history
        match feedback:
            case FirstToken(request_id=request_id):
                history.first_token(request_id, self._clock())
            case Finished():
                history.finished(feedback)
            case Failed(request_id=request_id):
                history.failed(request_id)
            case WorkerAdded(worker_id=worker_id, capacity_tokens=capacity_tokens):
                history.add_worker(worker_id, capacity_tokens=capacity_tokens)
            case WorkerRemoved(worker_id=worker_id):
                history.remove_worker(worker_id)
            case Evicted(worker_id=worker_id, keys=keys):
                history.evicted(worker_id, keys)

    def _case(self, request: RoutedRequest, view: ClusterView) -> _Case:
        history = self._history
        keys = history.keys(request.prompt)
        match = history.forest.match(keys)
        workers = {worker.worker_id: worker for worker in view.workers}
        cached, num_tokens = history.pending_tokens(match, workers), request.num_tokens
        loads, prefill = {}, {}
        for worker_id in workers:
            known = max(cached[worker_id], view.matched_tokens(worker_id))
            cached[worker_id] = known = min(known, num_tokens)
            loads[worker_id] = history.window.load(worker_id)
            prefill[worker_id] = self._cost.prefill_seconds(num_tokens - known, known)
        return _Case(
            history=history,
            keys=keys,
            match=match,
            num_tokens=num_tokens,
            cached=cached,
            loads=loads,
            prefill=prefill,
            workers=workers,
        )

    def _explore(self, case: _Case) -> tuple[WorkerView, str]:
        least = min(case.loads.values())
        ratios = {
            worker_id: self._history.window.hit_ratio(worker_id)
            for worker_id, load in case.loads.items()
            if not is_heavy(load, least, threshold=self._rebalance_threshold)
        }
        highest = max(ratios.values())
        if highest > self._imbalance_ratio:
            return self._cheapest(case, [w for w in ratios if ratios[w] == highest]), "balance"
        return self._cheapest(case, case.workers), "explore"

    def _exploit(self, case: _Case, cached: int) -> tuple[WorkerView, str]:
        owners = [w for w, tokens in case.cached.items() if tokens == cached]
        home = self._home(case)
        worker, reason = (
            (self._cheapest(case, owners), "exploit") if home is None else (home, "split")
        )
        lightest = case.workers[min(case.loads, key=lambda w: (case.loads[w], case.prefill[w]))]
        if is_heavy(
            case.loads[worker.worker_id],
            case.loads[lightest.worker_id],
            threshold=self._rebalance_threshold,
        ) and self._moving_pays(case, worker, lightest):
            return lightest, "rebalance"
        if home is None and (replica := self._replica(case, worker, owners)) is not None:
            return replica, "replicate"
        return worker, reason

    def _home(self, case: _Case) -> WorkerView | None:
        """Whose subtree the prompt is in, or who is to hold a copy of a prefix it shares."""
        path = case.match.path
        decode = self._cost.decode_seconds(self._history.window.mean_output_tokens())
        target = hot_prefixes.copy_if_hot(path, case.loads, decode_seconds=decode)
        home = hot_prefixes.home_of(path, case.loads) or target
        return case.workers[home] if home is not None else None

    def _replica(
        self, case: _Case, worker: WorkerView, owners: Sequence[WorkerId]
    ) -> WorkerView | None:
        """A worker for one more copy of the prefix where the match ends, if one is wanted."""
        if not case.match.path:
            return None
        num_requests = sum(map(self._history.window.num_requests, case.workers))
        wanted = hot_prefixes.wanted_copies(
            case.match.path[-1], case.workers, num_requests=num_requests
        )
        if len(owners) >= wanted:
            return None
        other = self._cheapest(case, [w for w in case.workers if w not in owners])
        return other if self._moving_pays(case, worker, other) else None

    def _moving_pays(self, case: _Case, worker: WorkerView, other: WorkerView) -> bool:
        added = case.extra(other.worker_id) - case.extra(worker.worker_id)
        return moving_pays(worker, other, added_seconds=added, cost=self._cost)

    def _cheapest(self, case: _Case, among: Iterable[WorkerId]) -> WorkerView:
        """The least load cost, then the least in flight, then whose turn was longest ago."""
        keys = {w: (case.cost(w), case.workers[w].num_requests) for w in among}
        least = min(keys.values())
        return self._turns.waited_longest([case.workers[w] for w in keys if keys[w] == least])
