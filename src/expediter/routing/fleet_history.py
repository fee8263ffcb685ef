"""What Preble's global scheduler remembers: who asked for which prefix where, and who keeps it.

Three views of the same placements, changed together and only here: the prefix forest, each
worker's cache as it is taken to be, and the load window. Memory is bounded by `max_blocks`:
beyond it the caches' share is cut to half of it first, then the window is cut short.
"""

from collections.abc import Collection, Iterable, Sequence

from expediter.load import WorkerId
from expediter.routing.feedback import Finished
from expediter.routing.gpu_cost import GpuCost
from expediter.routing.hot_prefixes import waits_of
from expediter.routing.load_window import LoadWindow, Placement
from expediter.routing.prefix_forest import Match, Node, PrefixForest
from expediter.routing.prompt import BlockKey, Prompt
from expediter.routing.worker_cache import WorkerCache

MAX_BLOCKS = 2**20
CAPACITY_BLOCKS = 2**16
"""A worker's KV memory where nobody has told."""


class FleetHistory:
    """The placements of the last `window_seconds` and the prefixes cached since."""

    def __init__(
        self,
        *,
        cost: GpuCost,
        block_size: int,
        window_seconds: float,
        expected_output_tokens: int,
        capacity_tokens: int | None = None,
        max_blocks: int = MAX_BLOCKS,
    ) -> None:
        """`capacity_tokens` is the KV memory of a worker that does not tell its own."""
        self.cost = cost
        self.block_size = block_size
        self.forest = PrefixForest()
        self.window = LoadWindow(
            seconds=window_seconds, cost=cost, expected_output_tokens=expected_output_tokens
        )
        self._half_seconds = window_seconds / 2
        self._max_blocks = max_blocks
        self._capacity = self._num_blocks(capacity_tokens) or CAPACITY_BLOCKS
        self.caches: dict[WorkerId, WorkerCache] = {}
        self._placements: dict[str, Placement] = {}  # of the window, whose story goes on

    def keys(self, prompt: Prompt | None) -> list[BlockKey]:
        """The prompt's blocks; none where no prompt is known."""
        return prompt.keys(self.block_size) if prompt is not None else []

    def expire(self, now: float) -> None:
        """Let go of requests older than the window."""
        while (placement := self.window.pop_expired(now)) is not None:
            self._uncount(placement)
            self._tidy(placement)

    def place(self, placement: Placement, keys: list[BlockKey], match: Match) -> None:
        """Record a choice. `match` is the forest's for these keys and still true."""
        cache = self._cache(placement.worker_id)
        limit = min(cache.capacity, self._max_blocks)
        if len(keys) > limit:
            keys = keys[:limit]
            match = self.forest.match(keys)
        path = self.forest.insert(match, keys)
        placement.node = path[-1] if path else None
        placement.waits = waits_of(path)
        self.window.add(placement)
        for node in path:
            share = node.share(placement.worker_id)
            share.num_requests += 1
            share.num_pending += 1
            node.prefill_ns += placement.prefill_ns
        cache.hold(path)
        before = self._placements.pop(placement.request_id, None)
        if before is not None:
            self._settle(before)
        self._placements[placement.request_id] = placement
        self._bound()

    def pending_tokens(self, match: Match, workers: Iterable[WorkerId]) -> dict[WorkerId, int]:
        """How many of the matched tokens each worker has been sent and not answered yet."""
        tokens = dict.fromkeys(workers, 0)
        waiting = list(tokens)
        for node in match.path:
            waiting = [w for w in waiting if w in node.shares and node.shares[w].num_pending]
            if not waiting:
                break
            for worker_id in waiting:
                tokens[worker_id] = min(node.end, match.num_blocks) * self.block_size
        return tokens

    def eviction_seconds(
        self, worker_id: WorkerId, num_tokens: int, *, keep: Collection[Node]
    ) -> float:
        """M: what the worker would have to compute again if it made room for so many tokens.

        Each victim counts by the share of the worker's requests that used it in the window.
        """
        cache, num_requests = self._cache(worker_id), self.window.num_requests(worker_id)
        num_blocks = -(-num_tokens // self.block_size) - cache.num_free
        if num_blocks <= 0 or not num_requests:
            return 0.0
        prefill_seconds, block_size = self.cost.prefill_seconds, self.block_size
        lost = sum(
            prefill_seconds(num_taken * block_size) * share.num_requests
            for share, num_taken in cache.victims(num_blocks, keep=keep)
            if share.num_requests
        )
        return lost / num_requests

    def first_token(self, request_id: str, now: float) -> None:
        """The prompt is computed. What it took beyond PT was waiting."""
        placement = self._placements.get(request_id)
        if placement is None or not placement.is_pending:
            return
        self._settle(placement)
        waits = placement.waits
        if waits is None:
            return
        waited = now - placement.placed_at - placement.prefill_ns * 1e-9
        waits.add(int(now // self._half_seconds), max(0.0, waited))
        copying = self.cost.prefill_seconds(waits.node.end * self.block_size)
        if waits.have_grown(at_least=copying):
            waits.node.is_hot = True
            waits.rebase()

    def finished(self, feedback: Finished) -> None:
        """The story's end; what the worker said replaces what was predicted."""
        placement = self._placements.pop(feedback.request_id, None)
        if placement is None:
            return
        self._settle(placement)
        if feedback.cached_tokens is not None:
            change = self.window.correct(placement, cached_tokens=feedback.cached_tokens)
            for node in _path_to_root(placement):
                node.prefill_ns += change
        if feedback.output_tokens is not None:
            self.window.answered(placement, output_tokens=feedback.output_tokens)

    def failed(self, request_id: str) -> None:
        """Without a first token it is as if the request had never been placed."""
        placement = self._placements.pop(request_id, None)
        if placement is None or not placement.is_pending:
            return
        self.window.remove(placement)
        self._uncount(placement)
        gained = None
        for node in _path_to_root(placement):
            share = node.shares.get(placement.worker_id)
            was_cached = node.start * self.block_size < placement.cached_tokens
            if was_cached or share is None or share.num_requests:
                break
            gained = node
        if gained is not None:
            self._cache(placement.worker_id).drop(gained)
        self._tidy(placement)

    def add_worker(self, worker_id: WorkerId, *, capacity_tokens: int | None) -> None:
        """Know a worker, and how much it can keep."""
        cache = self._cache(worker_id)
        cache.capacity = self._num_blocks(capacity_tokens) or self._capacity
        cache.evict(-cache.num_free)

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forget a worker, its requests and its cache."""
        for placement in [p for p in self.window if p.worker_id == worker_id]:
            self.window.remove(placement)
            self._uncount(placement)
            self._tidy(placement)
        cache = self.caches.pop(worker_id, None)
        if cache is not None:
            cache.evict(cache.num_blocks)

    def evicted(self, worker_id: WorkerId, keys: Sequence[BlockKey]) -> None:
        """A run goes when its first block does: tails go before heads, so it is gone by then."""
        cache = self.caches.get(worker_id)
        for key in keys if cache is not None else ():
            node = self.forest.starting_with(key)
            if cache is not None and node is not None and worker_id in node.shares:
                cache.drop(node)

    def _cache(self, worker_id: WorkerId) -> WorkerCache:
        cache = self.caches.get(worker_id)
        if cache is None:
            cache = WorkerCache(worker_id, forest=self.forest, capacity=self._capacity)
            self.caches[worker_id] = cache
        return cache

    def _num_blocks(self, num_tokens: int | None) -> int | None:
        return max(1, num_tokens // self.block_size) if num_tokens is not None else None

    def _settle(self, placement: Placement) -> None:
        """The request waits no longer."""
        if placement.is_pending:
            placement.is_pending = False
            for node in _path_to_root(placement):
                node.shares[placement.worker_id].num_pending -= 1

    def _uncount(self, placement: Placement) -> None:
        """Take a request that left the window off its path; nodes may be left without shares."""
        self._settle(placement)
        if self._placements.get(placement.request_id) is placement:
            del self._placements[placement.request_id]
        for node in _path_to_root(placement):
            share = node.shares[placement.worker_id]
            share.num_requests -= 1
            node.prefill_ns -= placement.prefill_ns
            if share.is_empty:
                del node.shares[placement.worker_id]
            if node.home is not None and not node.num_requests:
                node.home = None

    def _tidy(self, placement: Placement) -> None:
        if placement.node is not None:
            self.forest.tidy(placement.node)

    def _bound(self) -> None:
        limit = self._max_blocks
        while (excess := self.forest.num_blocks - limit) > 0:
            num_cached = sum(cache.num_blocks for cache in self.caches.values())
            if num_cached > limit // 2:
                fullest = max(self.caches.values(), key=lambda cache: cache.num_blocks)
                fullest.evict(min(excess, num_cached - limit // 2))
            else:
                oldest = self.window.pop_oldest()
                assert oldest is not None
                self._uncount(oldest)
                self._tidy(oldest)


def _path_to_root(placement: Placement) -> Iterable[Node]:
    return placement.node.to_root() if placement.node is not None else ()
