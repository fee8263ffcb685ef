"""NVIDIA Dynamo's KV router in its classic form, for comparison (lib/kv-router/src/scheduling).

    cost(w) = overlap_weight * prefill_blocks(w) + decode_blocks(w)           the least cost wins
    prefill_blocks(w) = (active prefill tokens + prompt tokens - overlap(w)) / block_size
    decode_blocks(w)  = blocks of the requests running there, this one's included

Blocks that running requests share count once. Prefill tokens are active from the choice to the
first token, blocks to the end of the answer; both are predicted here, never asked for.

With a temperature T > 0 the worker is drawn with p proportional to
exp(-(cost - min) / ((max - min) * T)), so T means the same whatever the costs' scale; at T = 0
the least cost wins, and equals are equally likely.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from expediter.load import WorkerId
from expediter.routing.feedback import Failed, Feedback, Finished, FirstToken, WorkerRemoved
from expediter.routing.prompt import BlockKey, num_held
from expediter.routing.view import Choice, ClusterView, RoutedRequest

OVERLAP_WEIGHT = 1.0
TEMPERATURE = 0.0


@dataclass(slots=True)
class _Active:
    """One request in flight."""

    worker_id: WorkerId
    keys: list[BlockKey]
    prefill_tokens: int


@dataclass(slots=True)
class _Worker:
    """What runs on one worker; `holders` counts the requests in flight that use a block."""

    prefill_tokens: int = 0
    holders: dict[BlockKey, int] = field(default_factory=dict)

    def num_new(self, keys: list[BlockKey]) -> int:
        """How many of the keys no running request has: all after the first that none has."""
        return len(keys) - num_held(keys, self.holders)

    def add(self, request: _Active) -> None:
        self.prefill_tokens += request.prefill_tokens
        for key in request.keys:
            self.holders[key] = self.holders.get(key, 0) + 1

    def remove(self, request: _Active) -> None:
        self.prefill_tokens -= request.prefill_tokens
        for key in request.keys:
            left = self.holders[key] - 1
            if left:
                self.holders[key] = left
            else:
                del self.holders[key]


class DynamoKv:
    """Overlap credit against decode blocks."""

    uses_prefixes = True
    uses_loads = True

    def __init__(
        self,
        *,
        rng: random.Random,
        block_size: int,
        overlap_weight: float = OVERLAP_WEIGHT,
        temperature: float = TEMPERATURE,
    ) -> None:
        self._rng = rng
        self._block_size = block_size
        self._overlap_weight = overlap_weight
        self._temperature = temperature
        self._workers: dict[WorkerId, _Worker] = {}
        self._active: dict[str, _Active] = {}

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        """The placement is active until its story ends; scores are negative costs in blocks."""
        keys = request.prompt.keys(self._block_size) if request.prompt is not None else []
        costs = {w.worker_id: self._cost(w.worker_id, request, view, keys) for w in view.workers}
        worker_id = draw(costs, temperature=self._temperature, rng=self._rng)
        matched = view.matched_tokens(worker_id)
        self._end(request.request_id)
        active = _Active(worker_id, keys, max(0, request.num_tokens - matched))
        self._active[request.request_id] = active
        self._workers.setdefault(worker_id, _Worker()).add(active)
        return Choice(
            worker_id=worker_id,
            matched_tokens=matched,
            reason="least-cost" if costs[worker_id] == min(costs.values()) else "drawn",
            scores={worker_id: -cost for worker_id, cost in costs.items()},
        )

    def observe(self, feedback: Feedback) -> None:
        """The first token ends a prefill, the story's end frees its blocks."""
        match feedback:
            case FirstToken(request_id=request_id):
                active = self._active.get(request_id)
                if active is not None:
                    self._workers[active.worker_id].prefill_tokens -= active.prefill_tokens
                    active.prefill_tokens = 0
            case Finished(request_id=request_id) | Failed(request_id=request_id):
                self._end(request_id)
            case WorkerRemoved(worker_id=worker_id):
                self._workers.pop(worker_id, None)
                gone = [i for i, active in self._active.items() if active.worker_id == worker_id]
                for request_id in gone:
                    del self._active[request_id]
            case _:
                pass

    def _cost(
        self, worker_id: WorkerId, request: RoutedRequest, view: ClusterView, keys: list[BlockKey]
    ) -> float:
        worker = self._workers.get(worker_id)
        active_tokens = worker.prefill_tokens if worker is not None else 0
        num_held = len(worker.holders) if worker is not None else 0
        num_new = worker.num_new(keys) if worker is not None else len(keys)
        tokens = active_tokens + request.num_tokens - view.matched_tokens(worker_id)
        return self._overlap_weight * tokens / self._block_size + num_held + num_new

    def _end(self, request_id: str) -> None:
        active = self._active.pop(request_id, None)
        if active is not None:
            self._workers[active.worker_id].remove(active)


def draw(costs: Mapping[WorkerId, float], *, temperature: float, rng: random.Random) -> WorkerId:
    """A worker, the likelier the less it costs; one of the cheapest at temperature 0."""
    least, most = min(costs.values()), max(costs.values())
    if temperature == 0 or least == most:
        return rng.choice([worker_id for worker_id, cost in costs.items() if cost == least])
    scale = (most - least) * temperature
    weights = [math.exp(-(cost - least) / scale) for cost in costs.values()]
    return rng.choices(list(costs), weights=weights)[0]
