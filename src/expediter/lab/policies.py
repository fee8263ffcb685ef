"""Any routing policy on the demo's traffic: the gateway's own code, on the demo's replicas.

The page's five rules (`demo.py`) know one kind of load, what was computed lately. The gateway's
policies see what they see in a gateway: work outstanding, requests in flight, first tokens and
ends. So here replicas have queues while policies choose. A replica prefills one prompt after
another at 0.1 ms a token and decodes the 200 tokens of an answer beside that, at 20 + 0.2 B ms a
token while B requests decode there.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from expediter.config import PolicyName, RoutingConfig
from expediter.config.routing import PrebleConfig, SloConfig
from expediter.lab.caches import BLOCK_TOKENS, FleetCaches, Form, Keys, fleet_caches
from expediter.lab.demo import FAST_POLICIES, GUARD, LOAD_WINDOW, NO_GUARD, fixed_routes
from expediter.lab.outcome import PREFILL_SECONDS, Outcome, outcome
from expediter.lab.traffic import (
    ANSWER_TOKENS,
    NEW_TOKENS,
    SYSTEM_TOKENS,
    Setting,
    Traffic,
    draw,
)
from expediter.load import WorkerId
from expediter.routing.feedback import Evicted, Finished, FirstToken, Learner, WorkerAdded
from expediter.routing.outstanding import OutstandingWork, Work
from expediter.routing.policy import RoutingPolicy
from expediter.routing.prompt import named_prompt
from expediter.routing.view import ClusterView, RoutedRequest, WorkerView
from expediter.simulation.study import BuildPolicy

Route = Callable[[int, Sequence[int]], int]
"""From a request's number and each replica's match to the replica."""

REAL_POLICIES: tuple[PolicyName, ...] = (
    "least-loaded",
    "power-of-two",
    "sglang",
    "dynamo",
    "preble",
    "slo",
)


def play(policy: str, form: Form, setting: Setting, build_policy: BuildPolicy) -> Outcome:
    """One policy, one of `demo.FAST_POLICIES` or of `REAL_POLICIES`, on one form of the traffic."""
    traffic, caches = draw(setting), fleet_caches(form, setting)
    fixed = fixed_routes(setting, traffic)
    if policy in fixed:
        routes = iter(fixed[policy])
        found = _walk(traffic, caches, lambda _, __: next(routes))
    elif policy in ("cache-aware", "longest-match"):
        window = _Window(setting, traffic, guard=GUARD if policy == "cache-aware" else NO_GUARD)
        found = _walk(traffic, caches, window.route)
    else:
        fleet = _Fleet(setting, traffic, caches)
        found = fleet.run(policy, build_policy)
    return outcome(policy, setting=setting, traffic=traffic, routes=found[0], missed=found[1])


def in_blocks(setting: Setting, build_policy: BuildPolicy) -> list[Outcome]:
    """The page's five policies on real text."""
    return [play(policy, "blocks", setting, build_policy) for policy in FAST_POLICIES]


def _walk(traffic: Traffic, caches: FleetCaches, route: Route) -> tuple[list[int], list[int]]:
    routes, missed = [], []
    for number, history in enumerate(traffic.histories):
        matches = caches.matches(number)
        chosen = route(number, matches)
        caches.take(number, chosen)
        routes.append(chosen)
        missed.append(SYSTEM_TOKENS + history + NEW_TOKENS - matches[chosen])
    return routes, missed


class _Window:
    """The page's rule with its load, written straightforwardly."""

    def __init__(self, setting: Setting, traffic: Traffic, *, guard: float) -> None:
        self._traffic = traffic
        self._guard = guard
        self._loads = [0] * setting.num_replicas
        self._recent: deque[tuple[int, int]] = deque()

    def route(self, number: int, matches: Sequence[int]) -> int:
        """The longest match under the guard; what it leaves to compute counts as load."""
        loads = self._loads
        limit = self._guard * sum(loads) / len(loads)
        eligible = [i for i, load in enumerate(loads) if load <= limit]
        chosen = max(eligible, key=lambda i: (matches[i], -loads[i]))
        history = self._traffic.histories[number]
        computed = SYSTEM_TOKENS + history + NEW_TOKENS - matches[chosen]
        self._recent.append((chosen, computed))
        loads[chosen] += computed
        if len(self._recent) > LOAD_WINDOW:
            oldest, left = self._recent.popleft()
            loads[oldest] -= left
        return chosen


@dataclass(slots=True)
class _Flight:
    """A request at a replica, until its answer ends."""

    request_id: str
    replica: int
    work: Work
    has_begun: bool = False


class _Fleet:
    """Replicas with queues, as a gateway's policy sees them."""

    def __init__(self, setting: Setting, traffic: Traffic, caches: FleetCaches) -> None:
        self._setting = setting
        self._traffic = traffic
        self._caches = caches
        self._ids = [WorkerId(f"replica-{number}") for number in range(setting.num_replicas)]
        self._free_at = [0.0] * setting.num_replicas
        self._num_decoding = [0] * setting.num_replicas
        self._work = OutstandingWork()
        self._events: list[tuple[float, int, _Flight]] = []
        self._now = 0.0
        self._learner: Learner | None = None

    def run(self, name: str, build_policy: BuildPolicy) -> tuple[list[int], list[int]]:
        """Routes and computed tokens."""
        config = _config(name, self._setting)
        rng = random.Random(f"policy {self._setting.seed}")
        policy = build_policy(config, clock=lambda: self._now, rng=rng)
        self._learner = policy if isinstance(policy, Learner) else None
        for worker_id in self._ids:
            self._tell(WorkerAdded(worker_id=worker_id, capacity_tokens=self._setting.capacity))
        routes, missed = [], []
        for number, unit_time in enumerate(self._traffic.unit_times):
            self._advance(unit_time / self._setting.rate)
            matches = self._caches.matches(number)
            chosen = self._choose(policy, number, matches)
            computed = SYSTEM_TOKENS + self._traffic.histories[number] + NEW_TOKENS
            computed -= matches[chosen]
            self._send(number, chosen, computed)
            routes.append(chosen)
            missed.append(computed)
        return routes, missed

    def _choose(self, policy: RoutingPolicy, number: int, matches: Sequence[int]) -> int:
        history, work = self._traffic.histories[number], self._work
        request = RoutedRequest(
            request_id=str(number),
            prompt=named_prompt(
                self._caches.keys(number),
                num_tokens=SYSTEM_TOKENS + history + NEW_TOKENS,
                block_size=BLOCK_TOKENS,
            ),
            max_output_tokens=ANSWER_TOKENS,
            session=str(self._traffic.conversations[number]),
        )
        workers = [
            WorkerView(
                worker_id=worker_id,
                load_tokens=work.tokens(worker_id),
                num_requests=work.num_requests(worker_id),
            )
            for worker_id in self._ids
        ]
        view = ClusterView(workers=workers, matched=dict(zip(self._ids, matches, strict=True)))
        return self._ids.index(policy.choose(request, view).worker_id)

    def _send(self, number: int, replica: int, computed: int) -> None:
        work = self._work.start(
            self._ids[replica], prefill_tokens=computed, max_output_tokens=ANSWER_TOKENS
        )
        first = max(self._now, self._free_at[replica]) + computed * PREFILL_SECONDS
        self._free_at[replica] = first
        heapq.heappush(self._events, (first, number, _Flight(str(number), replica, work)))
        gone: Keys = self._caches.take(number, replica)
        if gone and self._learner is not None:
            self._tell(Evicted(worker_id=self._ids[replica], keys=gone))

    def _advance(self, now: float) -> None:
        """First tokens and ends until `now`."""
        events = self._events
        while events and events[0][0] <= now:
            self._now, number, flight = heapq.heappop(events)
            replica = flight.replica
            if flight.has_begun:
                self._num_decoding[replica] -= 1
                self._work.finish(flight.work)
                self._tell(Finished(request_id=flight.request_id, output_tokens=ANSWER_TOKENS))
                continue
            flight.has_begun = True
            self._num_decoding[replica] += 1
            self._work.prefilled(flight.work)
            self._tell(FirstToken(request_id=flight.request_id))
            seconds = ANSWER_TOKENS * (0.020 + 0.0002 * self._num_decoding[replica])
            heapq.heappush(events, (self._now + seconds, number, flight))
        self._now = now

    def _tell(self, event: WorkerAdded | Evicted | FirstToken | Finished) -> None:
        if self._learner is not None:
            self._learner.observe(event)


def _config(name: str, setting: Setting) -> RoutingConfig:
    if name not in REAL_POLICIES:
        raise ValueError(f"{name!r} is none of {', '.join(REAL_POLICIES)}")
    return RoutingConfig(
        policy=name,
        block_size=BLOCK_TOKENS,
        preble=PrebleConfig(gpu_cost="worked-example", capacity_tokens=setting.capacity),
        slo=SloConfig(gpu_cost="worked-example"),
    )
