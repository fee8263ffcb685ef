"""The real policies on the demo's traffic: as good as its cache-aware rule, 94 % at 1.05.

Twenty requests a second; the last forty are in flight, each with its missed tokens and 256 tokens
of decoding as outstanding work.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from expediter.clock import Clock
from expediter.load import WorkerId
from expediter.routing.cache_aware import CacheAware
from expediter.routing.feedback import Finished, FirstToken, Learner
from expediter.routing.fleet_history import FleetHistory
from expediter.routing.gpu_cost import WORKED_EXAMPLE
from expediter.routing.policy import RoutingPolicy
from expediter.routing.preble import WINDOW_SECONDS, PrebleE2
from expediter.routing.prompt import BlockKey, Prompt
from expediter.routing.view import ClusterView, RoutedRequest, WorkerView
from experiments.demo_traffic import (
    MAX_HISTORY,
    NEW_TOKENS,
    SYSTEM_TOKENS,
    TURN_TOKENS,
    Setting,
    next_history,
    simulate,
)

BLOCK_SIZE, IN_FLIGHT, SECONDS_APART = 16, 40, 0.05
SETTING = Setting()
WORKERS = [WorkerId(f"worker-{i}") for i in range(SETTING.num_replicas)]


def cache_aware(_: Clock) -> RoutingPolicy:
    return CacheAware(load_weight=0.0, max_imbalance=0.2, slack_tokens=1024)


def preble(clock: Clock) -> RoutingPolicy:
    history = FleetHistory(
        cost=WORKED_EXAMPLE,
        block_size=BLOCK_SIZE,
        window_seconds=WINDOW_SECONDS,
        expected_output_tokens=128,
        capacity_tokens=SETTING.capacity,
    )
    return PrebleE2(history, clock=clock)


class Router:
    """A policy in the place of the demo's rules."""

    def __init__(self, make: Callable[[Clock], RoutingPolicy]) -> None:
        self.now = 0.0
        self.policy = make(lambda: self.now)
        self.histories: dict[int, int] = {}
        self.work: Counter[WorkerId] = Counter()
        self.running: deque[tuple[str, WorkerId, int]] = deque()

    def place(self, conversation: int, matches: Sequence[int], _: Sequence[float]) -> int:
        self.now += SECONDS_APART
        history = self.histories.get(conversation, TURN_TOKENS)
        self.histories[conversation] = next_history(history)
        num_tokens = SYSTEM_TOKENS + history + NEW_TOKENS
        request = RoutedRequest(request_id=str(self.now), prompt=prompt(conversation, num_tokens))
        workers = [WorkerView(worker_id=w, load_tokens=self.work[w]) for w in WORKERS]
        view = ClusterView(workers=workers, matched=dict(zip(WORKERS, matches, strict=True)))
        chosen = self.policy.choose(request, view).worker_id
        self.run(request.request_id, chosen, num_tokens - matches[WORKERS.index(chosen)] + 256)
        return WORKERS.index(chosen)

    def run(self, request_id: str, worker_id: WorkerId, work: int) -> None:
        self.running.append((request_id, worker_id, work))
        self.work[worker_id] += work
        learner = self.policy if isinstance(self.policy, Learner) else None
        if learner is not None:
            learner.observe(FirstToken(request_id=request_id))
        if len(self.running) > IN_FLIGHT:
            ended, where, left = self.running.popleft()
            self.work[where] -= left
            if learner is not None:
                learner.observe(Finished(request_id=ended, output_tokens=200))


def prompt(conversation: int, num_tokens: int) -> Prompt:
    made = Prompt(data=bytes(4 * num_tokens), seed=BlockKey(b""), is_text=False)
    made._keys[BLOCK_SIZE] = names(conversation)[: num_tokens // BLOCK_SIZE]
    return made


@cache
def names(conversation: int) -> list[BlockKey]:
    """Blocks with names of their own: no tokens have to be made and hashed."""
    num_system = SYSTEM_TOKENS // BLOCK_SIZE
    num_blocks = (SYSTEM_TOKENS + MAX_HISTORY + NEW_TOKENS) // BLOCK_SIZE
    found = [f"{conversation % 4}/{i}" for i in range(num_system)]
    found += [f"{conversation}:{i}" for i in range(num_system, num_blocks)]
    return [BlockKey(name.encode()) for name in found]


@pytest.mark.parametrize("make", [cache_aware, preble])
def test_a_real_policy_is_as_good_as_the_demos_rule(
    make: Callable[[Clock], RoutingPolicy],
) -> None:
    hit_rate, imbalance = simulate(Router(make).place, SETTING, seed=1)
    assert hit_rate > 0.94
    assert imbalance < 1.2
