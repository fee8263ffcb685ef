"""The longest match, unless the worker that has it is overloaded.

    score(w) = matched(w) - lambda * load(w)                       the best score wins
    w may be chosen if load(w) <= (1 + eps) * mean load + allowance(w)
    allowance(w) = max(slack, matched(w) - matched elsewhere)

All quantities are tokens; load is work outstanding in tokens of prefill (`outstanding.py`).

Without an allowance the rule would misfire on a quiet fleet: one request in flight on one of
three workers is three times the mean, and a conversation would leave its worker for nothing.
`slack` is work that a worker takes into its running batch without making anyone wait (half a
step's token budget), and never counts as overload. Beyond it, moving a request away pays only
if it would wait for more tokens than another worker must compute anew; "elsewhere" is the best
match among workers that are not overloaded by slack alone.

Equal scores go to the least loaded, then to the worker that was chosen longest ago. So cold
prompts spread evenly, and so do requests whose prefix every worker holds. A prefix held by one
worker is copied to another once the work queued behind it outweighs computing it again.
"""

from collections.abc import Iterator, Mapping, Sequence

from expediter.load import WorkerId
from expediter.routing.policy import Turns
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView


class CacheAware:
    """argmax(matched - lambda * load) among workers that are not overloaded."""

    uses_prefixes = True
    uses_loads = True

    def __init__(self, *, load_weight: float, max_imbalance: float, slack_tokens: int) -> None:
        """`load_weight` is lambda, `max_imbalance` is eps."""
        self._load_weight = load_weight
        self._max_imbalance = max_imbalance
        self._slack_tokens = slack_tokens
        self._turns = Turns()

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:  # noqa: ARG002
        """Reasons: longest-match, no-match, or overloaded when the guard kept a longer match."""
        weight, matched = self._load_weight, view.matched.get
        eligible = self._eligible(view)
        scores = [matched(w.worker_id, 0) - weight * w.load_tokens for w in eligible]
        best = max(scores)
        equals = [w for w, score in zip(eligible, scores, strict=True) if score == best]
        if len(equals) > 1:
            least = min([w.load_tokens for w in equals])
            equals = [w for w in equals if w.load_tokens == least]
        worker = self._turns.waited_longest(equals)
        self._turns.take(worker.worker_id)
        all_scores = _Scores(view, weight)
        return Choice(
            worker_id=worker.worker_id,
            matched_tokens=matched(worker.worker_id, 0),
            reason=_reason(worker.worker_id, view, all_scores),
            scores=all_scores,
        )

    def _eligible(self, view: ClusterView) -> Sequence[WorkerView]:
        """The workers that are not overloaded; the least loaded always is one of them."""
        workers, slack = view.workers, self._slack_tokens
        loads = [w.load_tokens for w in workers]
        limit = (1 + self._max_imbalance) * sum(loads) / len(loads)
        if max(loads) <= limit + slack:
            return workers
        free = [w for w in workers if w.load_tokens <= limit + slack]
        if not view.matched:
            return free
        matched = view.matched.get
        elsewhere = max([matched(w.worker_id, 0) for w in free])
        return [
            w
            for w in workers
            if w.load_tokens <= limit + max(slack, matched(w.worker_id, 0) - elsewhere)
        ]


class _Scores(Mapping[WorkerId, float]):
    """Every candidate's score, worked out when somebody asks, which is seldom."""

    __slots__ = ("_found", "_view", "_weight")

    def __init__(self, view: ClusterView, weight: float) -> None:
        self._view = view
        self._weight = weight
        self._found: dict[WorkerId, float] | None = None

    def __getitem__(self, worker_id: WorkerId) -> float:
        return self._scores()[worker_id]

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._scores())

    def __len__(self) -> int:
        return len(self._view.workers)

    def _scores(self) -> dict[WorkerId, float]:
        if self._found is None:
            matched, weight = self._view.matched.get, self._weight
            self._found = {
                w.worker_id: matched(w.worker_id, 0) - weight * w.load_tokens
                for w in self._view.workers
            }
        return self._found


def _reason(worker_id: WorkerId, view: ClusterView, scores: Mapping[WorkerId, float]) -> str:
    if not view.matched:
        return "no-match"
    if max(scores.values()) > scores[worker_id]:
        return "overloaded"
    return "longest-match" if view.matched_tokens(worker_id) else "less-loaded"
