"""A conversation stays where it is, as long as its worker is not full.

The key is what the caller says: the session header or the user. Where it says nothing, it is
the prompt's first blocks, so that requests with one beginning meet on one worker. The key's
worker comes from a hash ring, which needs no memory of past requests and is the same in every
router; see there for the bound on loads. A worker with fewer than `slack_requests` in flight is
never full: it makes nobody wait, and on a quiet fleet one request is already above the mean.
"""

from collections.abc import Mapping

from expediter.load import WorkerId
from expediter.routing.feedback import Feedback, WorkerAdded, WorkerRemoved
from expediter.routing.hash_ring import HashRing, bounded_capacity
from expediter.routing.policy import LeastLoaded
from expediter.routing.prompt import BYTES_PER_TOKEN, Prompt
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView


class Sticky:
    """The first worker from the key's place on the ring that is not full."""

    uses_prefixes = True  # a request without a session is known by its prompt
    uses_loads = True

    def __init__(
        self,
        *,
        max_imbalance: float,
        slack_requests: int,
        block_size: int,
        num_blocks: int,
        num_points: int,
    ) -> None:
        """`max_imbalance` is eps; `num_blocks` of a prompt are its key where there is no session.

        So many blocks should reach beyond what all prompts share, or they all have one key.
        """
        self._max_imbalance = max_imbalance
        self._slack_requests = slack_requests
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._ring = HashRing(num_points=num_points)
        self._by_load = LeastLoaded()

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        """Reasons: sticky, overflow when the key's own worker was full, or least-loaded."""
        key = self._key(request)
        if key is None:
            return self._by_load.choose(request, view)
        candidates = {worker.worker_id: worker for worker in view.workers}
        for worker_id in candidates:
            self._ring.add(worker_id)
        worker_id, reason = self._place(key, candidates)
        return Choice(
            worker_id=worker_id,
            matched_tokens=view.matched_tokens(worker_id),
            reason=reason,
            scores={w.worker_id: -float(w.num_requests) for w in view.workers},
        )

    def observe(self, feedback: Feedback) -> None:
        """Only membership matters."""
        match feedback:
            case WorkerAdded(worker_id=worker_id):
                self._ring.add(worker_id)
            case WorkerRemoved(worker_id=worker_id):
                self._ring.remove(worker_id)
            case _:
                pass

    def _place(self, key: bytes, candidates: Mapping[WorkerId, WorkerView]) -> tuple[WorkerId, str]:
        capacity = bounded_capacity(
            num_requests=sum(worker.num_requests for worker in candidates.values()),
            num_workers=len(candidates),
            max_imbalance=self._max_imbalance,
        )
        capacity = max(capacity, self._slack_requests)
        reason = "sticky"
        for worker_id in self._ring.walk(key):
            worker = candidates.get(worker_id)
            if worker is None:
                continue  # away: its keys go to the next worker until it is back
            if worker.num_requests < capacity:
                return worker_id, reason
            reason = "overflow"
        raise AssertionError("more requests in flight than were counted")

    def _key(self, request: RoutedRequest) -> bytes | None:
        if request.session is not None:
            return b"session\0" + request.session.encode("utf-8", "surrogatepass")
        return self._prompt_key(request.prompt) if request.prompt is not None else None

    def _prompt_key(self, prompt: Prompt) -> bytes:
        """The first blocks' name; of a prompt shorter than a block, all of it."""
        keys = prompt.keys(self._block_size)
        if keys:
            key = keys[min(self._num_blocks, len(keys)) - 1]
            return key if isinstance(key, bytes) else b"%d" % key  # a simulated block's number
        return prompt.seed + prompt.first_extra + prompt.whole[: self._block_size * BYTES_PER_TOKEN]
