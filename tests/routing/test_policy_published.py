"""Power of two, SGLang's and Dynamo's routers, against their published rules."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_cases import A, B, C, D, request, view

from expediter.load import WorkerId
from expediter.routing.dynamo import DynamoKv, draw
from expediter.routing.feedback import Failed, Finished, FirstToken, WorkerRemoved
from expediter.routing.power_of_two import PowerOfTwo
from expediter.routing.sglang import SglangCacheAware


def test_the_less_loaded_of_two_is_never_the_most_loaded() -> None:
    policy = PowerOfTwo(rng=random.Random(1))
    loads = {A: 1.0, B: 2.0, C: 3.0, D: 4.0}
    counts = Counter(
        policy.choose(request("r"), view(A, B, C, D, load_tokens=loads)).worker_id
        for _ in range(6000)
    )
    # Of the six pairs, three have A, two have B without A, one is C and D.
    assert counts[D] == 0
    assert [counts[w] / 6000 for w in (A, B, C)] == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=0.03)


def test_power_of_two_takes_the_only_worker() -> None:
    assert PowerOfTwo(rng=random.Random(1)).choose(request("r"), view(A)).worker_id == A


def test_power_of_two_keeps_queues_shorter_than_chance() -> None:
    policy, loads = PowerOfTwo(rng=random.Random(2)), Counter[WorkerId]()
    workers = [WorkerId(str(i)) for i in range(50)]
    for _ in range(1000):
        seen = view(*workers, load_tokens={w: float(n) for w, n in loads.items()})
        loads[policy.choose(request("r"), seen).worker_id] += 1
    assert max(loads.values()) <= 24  # the mean is 20; one random choice gives about 30


def sglang(**changed: object) -> SglangCacheAware:
    return SglangCacheAware(block_size=10, **changed)  # type: ignore[arg-type]


def test_sglang_follows_a_match_above_its_threshold() -> None:
    """60 of 100 tokens match: more than 0.3 of them."""
    policy = sglang()
    first = policy.choose(request("1", ("s", 60)), view(A, B))
    again = policy.choose(request("2", ("s", 60), ("u", 40)), view(A, B))
    assert (first.reason, again.reason) == ("smallest-tree", "cache-hit")
    assert again.worker_id == first.worker_id
    assert again.matched_tokens == 60


def test_sglang_sends_a_short_match_to_the_smallest_tree() -> None:
    """30 of 100 tokens match: not more than 0.3 of them."""
    policy = sglang()
    policy.choose(request("1", ("s", 30)), view(A, B))
    other = policy.choose(request("2", ("s", 30), ("u", 70)), view(A, B))
    assert (other.worker_id, other.reason) == (B, "smallest-tree")
    assert other.scores == {A: -3.0, B: 0.0}


def test_its_successor_sends_it_to_the_shortest_queue() -> None:
    policy = sglang(explore="shortest-queue")
    choice = policy.choose(request("1", ("s", 30)), view(A, B, num_requests={A: 1}))
    assert (choice.worker_id, choice.reason) == (B, "shortest-queue")


@pytest.mark.parametrize(
    ("most", "fewest", "is_imbalanced"),
    [(65, 0, True), (64, 0, False), (200, 135, False), (200, 133, True)],
)
def test_sglang_is_imbalanced_by_both_thresholds(
    most: int, fewest: int, is_imbalanced: bool
) -> None:
    """More than 64 apart, and more than 1.5 times: 200 > 1.5 * 133 = 199.5, but not 202.5."""
    policy = sglang()
    policy.choose(request("1", ("s", 60)), view(A))
    choice = policy.choose(request("2", ("s", 60)), view(A, B, num_requests={A: most, B: fewest}))
    assert (choice.worker_id == B) == is_imbalanced
    assert choice.reason == ("shortest-queue" if is_imbalanced else "cache-hit")


def test_sglang_remembers_what_balance_sent_elsewhere() -> None:
    policy = sglang()
    policy.choose(request("1", ("s", 60)), view(A))
    policy.choose(request("2", ("s", 60)), view(A, B, num_requests={A: 100}))
    choice = policy.choose(request("3", ("s", 60)), view(A, B, num_requests={A: 1}))
    assert (choice.worker_id, choice.reason) == (B, "cache-hit")  # both hold it; B is less busy


def test_sglang_trees_are_bounded_and_forget_the_removed() -> None:
    policy = sglang(max_tree_tokens=50)
    for i in range(20):
        policy.choose(request(str(i), (f"p{i}", 40)), view(A))
    assert policy.choose(request("x", ("q", 10)), view(A)).scores == {A: -5.0}
    policy.observe(WorkerRemoved(worker_id=A))
    assert policy.choose(request("y", ("q", 10)), view(A)).scores == {A: 0.0}


def dynamo(*, temperature: float = 0.0, seed: int = 1) -> DynamoKv:
    return DynamoKv(rng=random.Random(seed), block_size=10, temperature=temperature)


def run(policy: DynamoKv, name: str, worker_id: WorkerId, num_blocks: int) -> None:
    """Have a worker decode a request of so many blocks."""
    policy.choose(request(name, (name, 10 * num_blocks)), view(worker_id))
    policy.observe(FirstToken(request_id=name))


def test_dynamo_worked_example() -> None:
    """Prefill and decode blocks (8, 10), (5, 5), (2, 9): costs 18, 10 and 11; the second wins.

    The request has ten blocks, of which 2, 5 and 8 are cached. Decode blocks hold the request's
    ten as well, so ten more stand on each worker's account and the order is the same.
    """
    policy = dynamo()
    for worker_id, num_blocks in ((A, 10), (B, 5), (C, 9)):
        run(policy, f"on-{worker_id}", worker_id, num_blocks)
    choice = policy.choose(request("r", ("new", 100)), view(A, B, C, matched={A: 20, B: 50, C: 80}))
    assert {w: -score - 10 for w, score in choice.scores.items()} == {A: 18, B: 10, C: 11}
    assert (choice.worker_id, choice.reason, choice.matched_tokens) == (B, "least-cost", 50)


def test_dynamo_counts_shared_blocks_of_running_requests_once() -> None:
    policy = dynamo()
    policy.choose(request("1", ("s", 50)), view(A))
    policy.observe(FirstToken(request_id="1"))
    choice = policy.choose(request("2", ("s", 50), ("u", 20)), view(A, B))
    # A: 7 blocks to prefill, 5 active and 2 new; B: 7 to prefill, all 7 new.
    assert choice.scores == {A: -14.0, B: -14.0}


def test_dynamo_frees_prefill_at_the_first_token_and_blocks_at_the_end() -> None:
    policy = dynamo()

    def cost(request_id: str) -> float:
        score = policy.choose(request(request_id, ("probe", 10)), view(A)).scores[A]
        policy.observe(Failed(request_id=request_id))
        return -score

    assert cost("0") == 2  # one block to prefill, one to hold
    policy.choose(request("1", ("s", 50)), view(A))
    assert cost("2") == 2 + 5 + 5
    policy.observe(FirstToken(request_id="1"))
    policy.observe(FirstToken(request_id="1"))
    assert cost("3") == 2 + 5
    policy.observe(Finished(request_id="1"))
    policy.observe(Finished(request_id="1"))
    assert cost("4") == 2


def test_dynamo_forgets_a_removed_worker() -> None:
    policy = dynamo()
    policy.choose(request("1", ("s", 50)), view(A))
    policy.observe(WorkerRemoved(worker_id=A))
    policy.observe(FirstToken(request_id="1"))
    policy.observe(Finished(request_id="1"))
    assert policy.choose(request("2", ("s", 50)), view(A)).scores == {A: -10.0}


def test_softmax_is_normalised_by_the_range() -> None:
    """Costs 10, 11 and 18 at T = 0.5: weights 1, exp(-1/4) and exp(-2)."""
    rng, costs = random.Random(3), {A: 18.0, B: 10.0, C: 11.0}
    counts = Counter(draw(costs, temperature=0.5, rng=rng) for _ in range(20000))
    weights = {B: 1.0, C: math.exp(-1 / 4), A: math.exp(-2)}
    expected = [weight / sum(weights.values()) for weight in weights.values()]
    assert [counts[w] / 20000 for w in weights] == pytest.approx(expected, abs=0.015)
    # A thousand times the costs: the same draws.
    same = random.Random(3)
    scaled = {w: 1000 * cost for w, cost in costs.items()}
    again = Counter(draw(scaled, temperature=0.5, rng=same) for _ in range(20000))
    assert again == counts


def test_at_temperature_zero_equals_are_equally_likely() -> None:
    rng = random.Random(4)
    counts = Counter(draw({A: 1.0, B: 1.0, C: 2.0}, temperature=0.0, rng=rng) for _ in range(4000))
    assert counts[C] == 0
    assert counts[A] / 4000 == pytest.approx(0.5, abs=0.03)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ffe")), max_size=40))
def test_dynamo_returns_to_nothing(story: list[tuple[int, str]]) -> None:
    """Whatever overlaps: when all requests have ended, no work and no block is left."""
    policy = dynamo(temperature=0.3)
    for i, (prefix, end) in enumerate(story):
        policy.choose(request(str(i), (f"p{prefix}", 30), (f"u{i % 3}", 20)), view(A, B, C))
        if end == "f":
            policy.observe(FirstToken(request_id=str(i)))
    for i, (_, end) in enumerate(story):
        ended = Finished(request_id=str(i)) if end == "f" else Failed(request_id=str(i))
        policy.observe(ended)
    probe = policy.choose(request("probe", ("probe", 10)), view(A, B, C))
    assert probe.scores == {A: -2.0, B: -2.0, C: -2.0}
