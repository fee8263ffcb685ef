"""Preble's L: the work of each worker's last minutes, in seconds of GPU time.

    L_i = sum over requests r placed on i within H of PT(missed_r) + DT(mean output on i)

Kept up to date as requests come and as they leave the window, so reading it takes constant time
(paper, Algorithm 2). Prefill is summed in whole nanoseconds: what is added and taken away again
leaves nothing behind.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from expediter.load import WorkerId
from expediter.routing.gpu_cost import GpuCost
from expediter.routing.hot_prefixes import Waits
from expediter.routing.prefix_forest import Node

_NANOSECONDS = 1e9


@dataclass(slots=True, eq=False, kw_only=True)
class Placement:
    """A request of the window. `node` is its prompt's end, `waits` that of its key portion."""

    request_id: str
    worker_id: WorkerId
    placed_at: float
    num_tokens: int
    cached_tokens: int
    node: Node | None = None
    waits: Waits | None = None
    output_tokens: int | None = None
    prefill_ns: int = 0
    is_pending: bool = True
    is_counted: bool = True


@dataclass(slots=True)
class _Sums:
    """Of one worker's requests in the window; outputs only of those that told."""

    num_requests: int = 0
    prefill_ns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    num_outputs: int = 0
    output_tokens: int = 0

    def add(self, placement: Placement, sign: int) -> None:
        self.num_requests += sign
        self.prefill_ns += sign * placement.prefill_ns
        self.prompt_tokens += sign * placement.num_tokens
        self.cached_tokens += sign * placement.cached_tokens
        if placement.output_tokens is not None:
            self.num_outputs += sign
            self.output_tokens += sign * placement.output_tokens


class LoadWindow:
    """The placements of the last `seconds`, and their sums by worker."""

    def __init__(self, *, seconds: float, cost: GpuCost, expected_output_tokens: int) -> None:
        """`expected_output_tokens` stands in until a first answer has ended."""
        self._seconds = seconds
        self._cost = cost
        self._expected_output_tokens = expected_output_tokens
        self._placements: deque[Placement] = deque()
        self._sums: dict[WorkerId, _Sums] = {}
        self._all = _Sums()

    def __iter__(self) -> Iterator[Placement]:
        return (placement for placement in self._placements if placement.is_counted)

    def add(self, placement: Placement) -> None:
        """Count a request that has just been placed."""
        placement.prefill_ns = self._prefill_ns(placement.num_tokens, placement.cached_tokens)
        self._placements.append(placement)
        self._count(placement, 1)

    def pop_expired(self, now: float) -> Placement | None:
        """Take out one request that is too old; None when there is none."""
        placements = self._placements
        while placements and not placements[0].is_counted:
            placements.popleft()
        if not placements or placements[0].placed_at > now - self._seconds:
            return None
        return self.pop_oldest()

    def pop_oldest(self) -> Placement | None:
        """Take out the oldest request, whatever its age."""
        while self._placements:
            placement = self._placements.popleft()
            if placement.is_counted:
                self.remove(placement)
                return placement
        return None

    def remove(self, placement: Placement) -> None:
        """Take a request out before its time; it must be counted still."""
        assert placement.is_counted
        placement.is_counted = False
        self._count(placement, -1)

    def correct(self, placement: Placement, *, cached_tokens: int) -> int:
        """Its worker told what was cached; returns the change of its prefill in nanoseconds."""
        before = placement.prefill_ns
        self._count(placement, -1)
        placement.cached_tokens = min(cached_tokens, placement.num_tokens)
        placement.prefill_ns = self._prefill_ns(placement.num_tokens, placement.cached_tokens)
        self._count(placement, 1)
        return placement.prefill_ns - before

    def answered(self, placement: Placement, *, output_tokens: int) -> None:
        """Its answer ended after so many tokens."""
        self._count(placement, -1)
        placement.output_tokens = output_tokens
        self._count(placement, 1)

    def num_requests(self, worker_id: WorkerId) -> int:
        """Requests placed on the worker within the window."""
        sums = self._sums.get(worker_id)
        return sums.num_requests if sums is not None else 0

    def load(self, worker_id: WorkerId) -> float:
        """L of the worker, in seconds."""
        sums = self._sums.get(worker_id)
        if sums is None:
            return 0.0
        decode = self._cost.decode_seconds(self.mean_output_tokens(worker_id))
        return sums.prefill_ns / _NANOSECONDS + sums.num_requests * decode

    def mean_output_tokens(self, worker_id: WorkerId | None = None) -> float:
        """Of the answers that ended there; of all workers' by default, or while there are none."""
        own = self._sums.get(worker_id) if worker_id is not None else None
        for sums in (own, self._all):
            if sums is not None and sums.num_outputs:
                return sums.output_tokens / sums.num_outputs
        return float(self._expected_output_tokens)

    def hit_ratio(self, worker_id: WorkerId) -> float:
        """The share of the window's prompt tokens that the worker had cached."""
        sums = self._sums.get(worker_id)
        return sums.cached_tokens / sums.prompt_tokens if sums and sums.prompt_tokens else 0.0

    def _prefill_ns(self, num_tokens: int, cached_tokens: int) -> int:
        seconds = self._cost.prefill_seconds(num_tokens - cached_tokens, cached_tokens)
        return round(seconds * _NANOSECONDS)

    def _count(self, placement: Placement, sign: int) -> None:
        self._all.add(placement, sign)
        sums = self._sums.setdefault(placement.worker_id, _Sums())
        sums.add(placement, sign)
        if sums.num_requests == 0:
            del self._sums[placement.worker_id]
