"""SGLang's cache-aware router, for comparison (sgl-router/src/policies/cache_aware.rs).

It counts requests in flight and remembers what it sent where; it knows nothing of evictions.

    imbalanced = max - min > balance_abs_threshold and max > balance_rel_threshold * min
    imbalanced                                   the fewest requests in flight   (shortest-queue)
    matched / prompt tokens > cache_threshold    a worker with the longest match (cache-hit)
    else                                         the smallest tree               (smallest-tree)

Its successor smg sends the last case to the fewest requests as well: `explore="shortest-queue"`.
The defaults are those of its command line; smg's are 0.5, 32 and 1.1.

Two differences that change no rule: matches are by blocks, not characters, and a tree that is
full drops its least recently used tail at once rather than once every two minutes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from expediter.load import WorkerId
from expediter.routing.assumed import AssumedBlocks
from expediter.routing.feedback import Feedback, WorkerRemoved
from expediter.routing.prompt import BlockKey, num_held
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

CACHE_THRESHOLD = 0.3
BALANCE_ABS_THRESHOLD = 64
BALANCE_REL_THRESHOLD = 1.5
MAX_TREE_TOKENS = 2**24
"""2^26 characters, four a token."""

NEVER = float("inf")


class SglangCacheAware:
    """The published rule, fed by its own placements."""

    uses_prefixes = True
    uses_loads = True

    def __init__(
        self,
        *,
        block_size: int,
        cache_threshold: float = CACHE_THRESHOLD,
        balance_abs_threshold: int = BALANCE_ABS_THRESHOLD,
        balance_rel_threshold: float = BALANCE_REL_THRESHOLD,
        max_tree_tokens: int = MAX_TREE_TOKENS,
        explore: Literal["smallest-tree", "shortest-queue"] = "smallest-tree",
    ) -> None:
        self._block_size = block_size
        self._cache_threshold = cache_threshold
        self._balance_abs_threshold = balance_abs_threshold
        self._balance_rel_threshold = balance_rel_threshold
        self._capacity = max(1, max_tree_tokens // block_size)
        self._explore = explore
        self._trees: dict[WorkerId, _Tree] = {}

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        """The placement is remembered, whichever rule made it."""
        keys = request.prompt.keys(self._block_size) if request.prompt is not None else []
        trees = {worker.worker_id: self._tree(worker.worker_id) for worker in view.workers}
        matched = {worker_id: tree.match(keys) for worker_id, tree in trees.items()}
        reason, scores = self._rule(view, trees, matched, num_tokens=request.num_tokens)
        # Equal scores go to fewer requests in flight, then to the first in the list.
        chosen = max(view.workers, key=lambda w: (scores[w.worker_id], -w.num_requests))
        trees[chosen.worker_id].add(keys)
        return Choice(
            worker_id=chosen.worker_id,
            matched_tokens=matched[chosen.worker_id] * self._block_size,
            reason=reason,
            scores=scores,
        )

    def observe(self, feedback: Feedback) -> None:
        """Only a worker's leaving matters: there is no feedback in this policy."""
        if isinstance(feedback, WorkerRemoved):
            self._trees.pop(feedback.worker_id, None)

    def _rule(
        self,
        view: ClusterView,
        trees: Mapping[WorkerId, "_Tree"],
        matched: Mapping[WorkerId, int],
        *,
        num_tokens: int,
    ) -> tuple[str, dict[WorkerId, float]]:
        queues = {worker.worker_id: -float(worker.num_requests) for worker in view.workers}
        if self._is_imbalanced(view.workers):
            return "shortest-queue", queues
        longest = max(matched.values()) * self._block_size
        if longest > self._cache_threshold * num_tokens:
            return "cache-hit", {w: float(n * self._block_size) for w, n in matched.items()}
        if self._explore == "shortest-queue":
            return "shortest-queue", queues
        return "smallest-tree", {w: -float(tree.num_blocks) for w, tree in trees.items()}

    def _is_imbalanced(self, workers: Sequence[WorkerView]) -> bool:
        most = max(worker.num_requests for worker in workers)
        fewest = min(worker.num_requests for worker in workers)
        return (
            most - fewest > self._balance_abs_threshold
            and most > self._balance_rel_threshold * fewest
        )

    def _tree(self, worker_id: WorkerId) -> "_Tree":
        tree = self._trees.get(worker_id)
        if tree is None:
            tree = self._trees[worker_id] = _Tree(capacity=self._capacity)
        return tree


class _Tree:
    """The blocks of the prompts that one worker was sent; every key's ancestors are here too."""

    def __init__(self, *, capacity: int) -> None:
        self._held: set[BlockKey] = set()
        self._recent = AssumedBlocks(
            capacity=capacity, added=self._held.update, dropped=self._held.difference_update
        )

    @property
    def num_blocks(self) -> int:
        return len(self._held)

    def match(self, keys: list[BlockKey]) -> int:
        """How many of the first keys are here."""
        return num_held(keys, self._held)

    def add(self, keys: list[BlockKey]) -> None:
        self._recent.put(keys, expires_at=NEVER)
