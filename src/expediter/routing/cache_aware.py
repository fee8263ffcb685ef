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

from expediter.load import WorkerId
from expediter.routing.policy import Turns
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView


class CacheAware:
    """argmax(matched - lambda * load) among workers that are not overloaded."""

    uses_prefixes = True

    def __init__(self, *, load_weight: float, max_imbalance: float, slack_tokens: int) -> None:
        """`load_weight` is lambda, `max_imbalance` is eps."""
        self._load_weight = load_weight
        self._max_imbalance = max_imbalance
        self._slack_tokens = slack_tokens
        self._turns = Turns()

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:  # noqa: ARG002
        """Reasons: longest-match, no-match, or overloaded when the guard kept a longer match."""
        load_weight, matched = self._load_weight, view.matched
        scores = {
            w.worker_id: matched.get(w.worker_id, 0) - load_weight * w.load_tokens
            for w in view.workers
        }
        eligible = self._eligible(view)
        best = max(scores[w.worker_id] for w in eligible)
        equals = [w for w in eligible if scores[w.worker_id] == best]
        if len(equals) > 1:
            least = min(w.load_tokens for w in equals)
            equals = [w for w in equals if w.load_tokens == least]
        worker = self._turns.waited_longest(equals)
        self._turns.take(worker.worker_id)
        return Choice(
            worker_id=worker.worker_id,
            matched_tokens=view.matched_tokens(worker.worker_id),
            reason=_reason(worker.worker_id, view, scores),
            scores=scores,
        )

    def _eligible(self, view: ClusterView) -> list[WorkerView]:
        """The workers that are not overloaded; the least loaded always is one of them."""
        loads = [w.load_tokens for w in view.workers]
        limit = (1 + self._max_imbalance) * sum(loads) / len(loads)
        if max(loads) <= limit + self._slack_tokens:
            return list(view.workers)
        free = [w for w in view.workers if w.load_tokens <= limit + self._slack_tokens]
        elsewhere = max(view.matched_tokens(w.worker_id) for w in free)
        return [
            w
            for w in view.workers
            if w.load_tokens
            <= limit + max(self._slack_tokens, view.matched_tokens(w.worker_id) - elsewhere)
        ]


def _reason(worker_id: WorkerId, view: ClusterView, scores: dict[WorkerId, float]) -> str:
    if not view.matched:
        return "no-match"
    if max(scores.values()) > scores[worker_id]:
        return "overloaded"
    return "longest-match" if view.matched_tokens(worker_id) else "less-loaded"
