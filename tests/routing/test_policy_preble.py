"""Preble's E2 against its formulas, in numbers small enough to do by hand.

Here PT(n) and DT(n) are n milliseconds, a block is 10 tokens, and an answer is 10 tokens long
until one has ended.
"""

import pytest
from policy_cases import MS, A, B, C, D, Fleet, request, view

from expediter.routing.feedback import (
    Evicted,
    Failed,
    Finished,
    WorkerAdded,
    WorkerRemoved,
)
from expediter.routing.view import RoutedRequest


def test_exploits_when_the_match_is_more_than_the_rest() -> None:
    """h > T - h: 60 of 100 tokens are exploited; 50 of 100 are not, and go where they cost less."""
    fleet = Fleet()
    fleet.serve(("s", 100), on=A)  # L(A) = 100 + 10 ms
    sixty = fleet.send(("s", 60), ("u", 40), matched={A: 60})
    assert (sixty.worker_id, sixty.reason, sixty.matched_tokens) == (A, "exploit", 60)
    fifty = fleet.send(("s", 50), ("v", 50), matched={A: 50})
    assert (fifty.worker_id, fifty.reason, fifty.matched_tokens) == (B, "explore", 0)


def test_load_is_missed_prefill_and_mean_output_of_the_window() -> None:
    fleet = Fleet()
    fleet.serve(("s", 100), on=A)
    fleet.serve(("s", 100), ("u", 40), on=A, cached=100)
    load = fleet.history.window.load
    assert load(A) == pytest.approx((100 + 40 + 2 * 10) * MS)
    assert load(B) == 0.0
    # The first answer is 30 tokens, so DT(30) holds for both; the next is 50, so DT(40).
    fleet.policy.observe(Finished(request_id="1", output_tokens=30))
    assert load(A) == pytest.approx((140 + 2 * 30) * MS)
    fleet.policy.observe(Finished(request_id="2", output_tokens=50))
    assert load(A) == pytest.approx((140 + 2 * 40) * MS)
    # A worker without answers of its own goes by everybody's.
    fleet.serve(("t", 10), on=B)
    assert load(B) == pytest.approx((10 + 40) * MS)


def test_what_the_worker_had_cached_replaces_what_was_predicted() -> None:
    fleet = Fleet()
    fleet.serve(("s", 100), on=A)
    fleet.policy.observe(Finished(request_id="1", cached_tokens=70))
    assert fleet.history.window.load(A) == pytest.approx((30 + 10) * MS)
    assert fleet.history.window.hit_ratio(A) == 0.7


def test_work_leaves_the_window_after_three_minutes() -> None:
    fleet = Fleet()
    fleet.serve(("s", 100), on=A)
    fleet.now = 60.0
    fleet.serve(("t", 50), on=A)
    fleet.history.expire(179.9)
    assert fleet.history.window.load(A) == pytest.approx((150 + 20) * MS)
    fleet.history.expire(180.0)
    assert fleet.history.window.load(A) == pytest.approx((50 + 10) * MS)
    fleet.history.expire(240.0)
    assert fleet.history.window.load(A) == 0.0


def test_eviction_costs_what_would_be_computed_again_by_its_use() -> None:
    """A holds x (50 tokens, two requests) and y (40, one), one block is free; 60 tokens come.

    Five blocks must go: y, unused the longest, whole, then one block of x.
    M = PT(40) * 1/3 + PT(10) * 2/3 = 20 ms.  L = 50 + 40 + 3 * 10.  P = 60.
    """
    fleet = Fleet(capacity_tokens=100)
    fleet.serve(("x", 50), on=A)
    fleet.serve(("y", 40), on=A)
    fleet.serve(("x", 50), on=A, cached=50)
    assert fleet.history.eviction_seconds(A, 60, keep=()) == pytest.approx(20 * MS)
    choice = fleet.send(("z", 60))
    assert choice.scores == pytest.approx({A: -(120 + 20 + 60) * MS, B: -60 * MS})
    assert choice.worker_id == B


def test_what_the_request_itself_uses_is_not_evicted_for_it() -> None:
    """As before, but the new request continues y, so only x can go: 5 blocks of it at 2/3."""
    fleet = Fleet(capacity_tokens=100)
    fleet.serve(("x", 50), on=A)
    fleet.serve(("y", 40), on=A)
    fleet.serve(("x", 50), on=A, cached=50)
    keep = set(fleet.history.forest.match(request("r", ("y", 40)).prompt.keys(10)).path)  # type: ignore[union-attr]
    assert fleet.history.eviction_seconds(A, 60, keep=keep) == pytest.approx(50 * 2 / 3 * MS)


def test_what_nobody_used_lately_costs_nothing_to_evict() -> None:
    fleet = Fleet(capacity_tokens=100)
    fleet.serve(("x", 90), on=A)
    fleet.now = 200.0
    fleet.history.expire(fleet.now)
    fleet.serve(("y", 10), on=A)
    assert fleet.history.eviction_seconds(A, 60, keep=()) == 0.0
    fleet.serve(("z", 60), on=A)
    cache = fleet.history.caches[A]
    assert (cache.num_blocks, cache.num_free) == (10, 0)  # 3 blocks of x, y, z


def test_equal_owners_tie_on_load_cost() -> None:
    fleet = Fleet()
    fleet.serve(("s", 80), on=A)
    fleet.serve(("s", 80), on=B)
    fleet.serve(("t", 30), on=B)
    choice = fleet.send(("s", 80), ("u", 20), to=(A, B, C), matched={A: 80, B: 80})
    assert (choice.worker_id, choice.reason) == (A, "exploit")  # C is idle and does not matter


def test_cold_prompts_spread_evenly() -> None:
    fleet = Fleet(imbalance_ratio=0.7)
    chosen = [fleet.send((f"p{i}", 40), to=(A, B, C, D)).worker_id for i in range(40)]
    assert {w: chosen.count(w) for w in (A, B, C, D)} == dict.fromkeys((A, B, C, D), 10)


def test_explored_prefill_goes_where_decoding_has_the_upper_hand() -> None:
    """A had 80 of 100 tokens cached, B 0 of 10; loads are 20 + 10 and 10 + 10 ms, within 1.5."""
    fleet = Fleet(imbalance_ratio=0.7)
    fleet.serve(("s", 100), on=A, cached=80)
    fleet.serve(("t", 10), on=B)
    choice = fleet.send(("new", 50))
    assert (choice.worker_id, choice.reason) == (A, "balance")


def test_a_heavy_worker_is_not_given_cold_prompts_for_its_hit_ratio() -> None:
    """A's ratio is 0.8 again, but 200 + 10 ms are more than 1.5 times B's."""
    fleet = Fleet(imbalance_ratio=0.7)
    fleet.serve(("s", 1000), on=A, cached=800)
    fleet.serve(("t", 10), on=B)
    assert fleet.send(("new", 50)).reason == "explore"


def test_what_is_placed_and_not_answered_counts_as_cached_there() -> None:
    fleet = Fleet()
    first = fleet.send(("s", 100))
    second = fleet.send(("s", 100), ("u", 10))
    assert (second.worker_id, second.reason) == (first.worker_id, "exploit")
    assert second.matched_tokens == 0  # what is known to be cached
    assert fleet.history.window.load(first.worker_id) == pytest.approx((100 + 10 + 20) * MS)


def test_a_worker_that_fails_has_gained_nothing() -> None:
    fleet = Fleet()
    fleet.send(("s", 100), to=(A,))
    fleet.policy.observe(Failed(request_id="1"))
    assert fleet.history.window.load(A) == 0.0
    assert list(fleet.history.forest) == []
    assert fleet.send(("s", 100), ("u", 10)).reason == "explore"


def test_a_failure_takes_back_only_what_it_brought() -> None:
    fleet = Fleet()
    fleet.serve(("s", 100), on=A)
    fleet.send(("s", 100), ("u", 50), to=(A,), matched={A: 100})
    fleet.policy.observe(Failed(request_id="2"))
    assert fleet.history.caches[A].num_blocks == 10
    assert fleet.history.window.load(A) == pytest.approx(110 * MS)


def test_evictions_and_removals_are_believed() -> None:
    fleet = Fleet()
    fleet.serve(("s", 100), on=A)
    fleet.serve(("s", 100), on=B)
    keys = request("r", ("s", 100)).prompt.keys(10)  # type: ignore[union-attr]
    fleet.policy.observe(Evicted(worker_id=A, keys=keys[5:]))
    assert fleet.history.caches[A].num_blocks == 10  # its first block is still there
    fleet.policy.observe(Evicted(worker_id=A, keys=keys[:5]))
    assert fleet.history.caches[A].num_blocks == 0
    fleet.policy.observe(WorkerRemoved(worker_id=B))
    assert fleet.history.window.load(B) == 0.0
    assert set(fleet.history.caches) == {A}


def test_a_worker_tells_how_much_it_can_keep() -> None:
    fleet = Fleet(capacity_tokens=100)
    fleet.policy.observe(WorkerAdded(worker_id=A, capacity_tokens=30))
    fleet.serve(("s", 100), on=A)
    assert fleet.history.caches[A].num_blocks == 3
    fleet.policy.observe(WorkerAdded(worker_id=A, capacity_tokens=10))
    assert fleet.history.caches[A].num_blocks == 1


def test_a_request_without_a_prompt_is_explored_by_its_length() -> None:
    fleet = Fleet()
    policy, seen = fleet.policy, view(A, B)
    first = policy.choose(RoutedRequest(request_id="1", body_tokens=100), seen)
    second = policy.choose(RoutedRequest(request_id="2", body_tokens=10), seen)
    assert {first.worker_id, second.worker_id} == {A, B}
    assert first.scores == pytest.approx({A: -100 * MS, B: -100 * MS})
