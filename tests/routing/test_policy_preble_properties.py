"""E2's books under random stories: nothing drifts, leaks or outgrows its bound.

The oracle counts everything anew from the window's placements after every step.
"""

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from policy_cases import A, B, C, request, view

from expediter.load import WorkerId
from expediter.routing.feedback import (
    Evicted,
    Failed,
    Feedback,
    Finished,
    FirstToken,
    WorkerAdded,
    WorkerRemoved,
)
from expediter.routing.fleet_history import FleetHistory
from expediter.routing.gpu_cost import LLAMA3_8B_H100_VLLM
from expediter.routing.preble import PrebleE2
from expediter.routing.prefix_forest import Node, PrefixForest

BLOCK, WINDOW, MAX_BLOCKS = 4, 180.0, 60
WORKERS = (A, B, C)


def check_forest(forest: PrefixForest) -> None:
    nodes = list(forest)
    assert forest.num_blocks == sum(len(node.keys) for node in nodes)
    for node in nodes:
        assert node.keys
        assert node.shares
        assert not any(share.is_empty for share in node.shares.values())
        assert all(forest.starting_with(key) is child for key, child in node.children.items())
        if node.parent is None:
            assert node.start == 0
        else:
            assert node.start == node.parent.end
            assert node.parent.children[node.keys[0]] is node
        assert node.waits is None or node.waits.node is node


def check_counts(history: FleetHistory) -> None:
    """Counts and work of every node and worker are those of the window's placements."""
    num_requests: Counter[tuple[Node, WorkerId]] = Counter()
    num_pending: Counter[tuple[Node, WorkerId]] = Counter()
    node_work: Counter[Node] = Counter()
    work: Counter[WorkerId] = Counter()
    totals: Counter[WorkerId] = Counter()
    for placement in history.window:
        worker_id = placement.worker_id
        totals[worker_id] += 1
        work[worker_id] += placement.prefill_ns
        for node in placement.node.to_root() if placement.node is not None else ():
            num_requests[node, worker_id] += 1
            num_pending[node, worker_id] += placement.is_pending
            node_work[node] += placement.prefill_ns
    for node in history.forest:
        assert node.prefill_ns == node_work.pop(node, 0)
        for worker_id, share in node.shares.items():
            assert share.num_requests == num_requests.pop((node, worker_id), 0)
            assert share.num_pending == num_pending.pop((node, worker_id), 0)
    assert not node_work
    assert not num_requests
    for worker_id in WORKERS:
        decode = LLAMA3_8B_H100_VLLM.decode_seconds(history.window.mean_output_tokens(worker_id))
        assert history.window.num_requests(worker_id) == totals[worker_id]
        assert history.window.load(worker_id) == work[worker_id] / 1e9 + totals[worker_id] * decode


def check_caches(history: FleetHistory) -> None:
    for worker_id, cache in history.caches.items():
        held = {n: s for n in history.forest if (s := n.shares.get(worker_id)) and s.num_cached}
        assert cache.num_blocks == sum(share.num_cached for share in held.values())
        assert cache.num_blocks <= cache.capacity
        order = [share.node for share in cache]
        assert len(order) == len(set(order)) == len(held)
        assert set(order) == set(held)
        place = {node: i for i, node in enumerate(order)}
        for node in held:
            if node.parent is not None:
                assert held[node.parent].num_cached == len(node.parent.keys)
                assert place[node.parent] > place[node]  # a head was used after its tail


class Stories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.history = FleetHistory(
            cost=LLAMA3_8B_H100_VLLM,
            block_size=BLOCK,
            window_seconds=WINDOW,
            expected_output_tokens=100,
            capacity_tokens=20 * BLOCK,
            max_blocks=MAX_BLOCKS,
        )
        self.policy = PrebleE2(self.history, clock=lambda: self.now)
        self.rng = random.Random(1)
        self.num_requests = 0

    @rule(
        parts=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)), max_size=4),
        workers=st.sets(st.sampled_from(WORKERS), min_size=1),
        matched=st.dictionaries(st.sampled_from(WORKERS), st.integers(0, 120)),
        load=st.dictionaries(st.sampled_from(WORKERS), st.integers(0, 100_000)),
        is_new=st.booleans(),
    )
    def choose(
        self,
        parts: list[tuple[str, int]],
        workers: set[WorkerId],
        matched: dict[WorkerId, int],
        load: dict[WorkerId, float],
        is_new: bool,
    ) -> None:
        self.num_requests += is_new
        seen = view(*sorted(workers), matched=matched, load_tokens=load)
        choice = self.policy.choose(request(str(self.num_requests), *parts), seen)
        assert choice.worker_id in workers
        assert set(choice.scores) == workers

    @rule(seconds=st.sampled_from([0.1, 5.0, 60.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 5), kind=st.sampled_from(["first", "finish", "failed"]))
    def tell(self, which: int, kind: str) -> None:
        request_id = str(max(0, self.num_requests - which))
        feedback: Feedback
        match kind:
            case "first":
                feedback = FirstToken(request_id=request_id)
            case "finish":
                feedback = Finished(request_id=request_id, cached_tokens=which * 7, output_tokens=9)
            case _:
                feedback = Failed(request_id=request_id)
        self.policy.observe(feedback)

    @rule(worker_id=st.sampled_from(WORKERS), capacity=st.sampled_from([None, 8, 40, 100]))
    def add(self, worker_id: WorkerId, capacity: int | None) -> None:
        self.policy.observe(WorkerAdded(worker_id=worker_id, capacity_tokens=capacity))

    @rule(worker_id=st.sampled_from(WORKERS))
    def remove(self, worker_id: WorkerId) -> None:
        self.policy.observe(WorkerRemoved(worker_id=worker_id))
        assert not any(worker_id in node.shares for node in self.history.forest)

    @rule(worker_id=st.sampled_from(WORKERS))
    def evict(self, worker_id: WorkerId) -> None:
        nodes = list(self.history.forest)
        if nodes:
            node = self.rng.choice(nodes)
            start = node.start
            self.policy.observe(Evicted(worker_id=worker_id, keys=[node.keys[0]]))
            share = node.shares.get(worker_id)  # it may now begin further up
            assert share is None or node.start + share.num_cached <= start

    @rule()
    def heat(self) -> None:
        nodes = list(self.history.forest)
        if nodes:
            self.rng.choice(nodes).is_hot = True

    @invariant()
    def books_agree(self) -> None:
        check_forest(self.history.forest)
        check_counts(self.history)
        check_caches(self.history)
        assert self.history.forest.num_blocks <= MAX_BLOCKS

    def teardown(self) -> None:
        """Once all requests have left the window, and all caches are gone, so is everything."""
        self.now += WINDOW + 1
        self.history.expire(self.now)
        assert not list(self.history.window)
        assert not self.history._placements
        for node in self.history.forest:
            assert not node.num_requests
            assert not node.prefill_ns
            assert node.home is None
        self.books_agree()
        for worker_id in WORKERS:
            self.policy.observe(WorkerRemoved(worker_id=worker_id))
        assert not list(self.history.forest)
        assert self.history.forest.num_blocks == 0


TestStories = Stories.TestCase
TestStories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_long_run_leaves_no_trace_and_stays_bounded() -> None:
    """Thousands of requests, most of whose stories never end."""
    rng, now = random.Random(7), 0.0
    history = FleetHistory(
        cost=LLAMA3_8B_H100_VLLM,
        block_size=BLOCK,
        window_seconds=WINDOW,
        expected_output_tokens=100,
        capacity_tokens=200 * BLOCK,
        max_blocks=1000,
    )
    policy = PrebleE2(history, clock=lambda: now)
    for i in range(4000):
        now += rng.expovariate(5)
        turns = rng.randrange(1, 8)
        parts = [(f"{rng.randrange(3)}", 40), *((f"c{i % 50}", 8 * turns),)]
        choice = policy.choose(request(str(i), *parts), view(*WORKERS))
        if i % 3:
            policy.observe(FirstToken(request_id=str(i)))
        if i % 3 == 1:
            policy.observe(Finished(request_id=str(i), output_tokens=rng.randrange(50)))
        assert choice.worker_id in WORKERS
        assert history.forest.num_blocks <= 1000
    check_forest(history.forest)
    check_counts(history)
    check_caches(history)
    history.expire(now + WINDOW)
    assert history.window.load(A) == 0.0
    assert sum(node.num_requests for node in history.forest) == pytest.approx(0)
