"""Mooncake's global scheduler of prefill (FAST'25, Algorithm 1), which moves prefixes to where it
wants them.

    if best / own(w) > threshold:  T(w) = transfer(best - own) + queue(w) + prefill(best cached)
    else:                          T(w) =                        queue(w) + prefill(own cached)
    the least T wins, and fetches from whoever holds the best match if that is how T came about

`best` is the longest match at any worker, `own` the one at w. The estimates of queue and prefill
are those of `slo` without its weights, so that nothing but the transfer is different. The paper
does not say its threshold.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from expediter.load import WorkerId
from expediter.routing.prompt import BlockKey
from expediter.routing.slo import PredictedCost
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView
from expediter.simulation.prefix_copy import Fetch


class GlobalCacheAware(PredictedCost):
    """A `Fetcher`; one that never fetches is Mooncake's local cache-aware scheduler."""

    def __init__(self, *, threshold: float, seconds_per_token: float, **settings: Any) -> None:
        """`seconds_per_token` is what a fetched one takes."""
        super().__init__(decode_weight=0.0, congestion_weight=0.0, **settings)
        self._threshold = threshold
        self._seconds_per_token = seconds_per_token
        self._best = 0
        self._missing: dict[str, int] = {}  # at workers that would fetch
        self._fetches: dict[str, Fetch] = {}

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        """See `PredictedCost`."""
        self._best = max(view.matched.values(), default=0)
        self._missing.clear()
        choice = super().choose(request, view)
        if choice.worker_id not in self._missing:
            return choice
        source = next(name for name, held in view.matched.items() if held == self._best)
        self._fetches[request.request_id] = Fetch(source, self._best)
        return replace(choice, matched_tokens=self._best, reason="fetched")

    def take_fetch(self, request_id: str) -> Fetch | None:
        """See `Fetcher`."""
        return self._fetches.pop(request_id, None)

    def _matched(
        self, marks: Sequence[BlockKey], distance: int, view: ClusterView
    ) -> dict[WorkerId, int]:
        matched = super()._matched(marks, distance, view)
        for worker_id, held in matched.items():
            if self._best > max(held * self._threshold, held):
                self._missing[worker_id] = self._best - held
                matched[worker_id] = self._best
        return matched

    def _total(self, worker: WorkerView, **known: Any) -> float:
        fetched = self._missing.get(worker.worker_id, 0)
        return super()._total(worker, **known) + fetched * self._seconds_per_token
