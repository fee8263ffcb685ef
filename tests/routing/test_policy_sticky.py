"""The ring's promises as properties, and what Sticky makes of them."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import A, B, C, request, view

from expediter.load import WorkerId
from expediter.routing.feedback import WorkerRemoved
from expediter.routing.hash_ring import HashRing, bounded_capacity
from expediter.routing.sticky import Sticky
from expediter.routing.view import RoutedRequest

KEYS = [b"key-%d" % i for i in range(4000)]


def ring_of(num_workers: int, *, num_points: int = 100) -> HashRing:
    ring = HashRing(num_points=num_points)
    for i in range(num_workers):
        ring.add(WorkerId(f"worker-{i}"))
    return ring


def sticky(*, max_imbalance: float = 0.25, slack_requests: int = 0, num_blocks: int = 2) -> Sticky:
    return Sticky(
        max_imbalance=max_imbalance,
        slack_requests=slack_requests,
        block_size=4,
        num_blocks=num_blocks,
        num_points=50,
    )


@pytest.mark.parametrize("num_workers", [1, 3, 8, 20])
def test_adding_a_worker_moves_about_one_key_in_n_plus_one_and_only_to_it(num_workers: int) -> None:
    ring = ring_of(num_workers)
    before = {key: ring.owner(key) for key in KEYS}
    ring.add(WorkerId("new"))
    moved = {key for key in KEYS if ring.owner(key) != before[key]}
    assert {ring.owner(key) for key in moved} == {"new"}
    # Its share has a standard deviation of 1/sqrt(100 points) of itself; 3.5 of them are allowed.
    assert len(moved) / len(KEYS) == pytest.approx(1 / (num_workers + 1), rel=0.35)


@pytest.mark.parametrize("num_workers", [2, 8])
def test_removing_a_worker_moves_only_its_keys(num_workers: int) -> None:
    ring = ring_of(num_workers)
    before = {key: ring.owner(key) for key in KEYS}
    gone = WorkerId("worker-1")
    ring.remove(gone)
    assert {before[key] for key in KEYS if ring.owner(key) != before[key]} == {gone}
    assert gone not in {ring.owner(key) for key in KEYS}


@given(st.permutations(range(6)))
def test_the_ring_does_not_depend_on_who_came_first(order: list[int]) -> None:
    ring = HashRing(num_points=20)
    for i in order:
        ring.add(WorkerId(f"worker-{i}"))
    expected = ring_of(6, num_points=20)
    assert [ring.owner(key) for key in KEYS[:50]] == [expected.owner(key) for key in KEYS[:50]]


def test_a_hundred_points_keep_every_share_within_half_of_the_mean() -> None:
    ring = ring_of(10)
    counts = Counter(ring.owner(key) for key in KEYS)
    mean = len(KEYS) / 10
    assert len(counts) == 10
    assert max(counts.values()) < 1.5 * mean
    assert min(counts.values()) > 0.5 * mean


def test_a_walk_visits_every_worker_once() -> None:
    ring = ring_of(7)
    for key in KEYS[:200]:
        walk = list(ring.walk(key))
        assert walk[0] == ring.owner(key)
        assert sorted(walk) == sorted(f"worker-{i}" for i in range(7))


def test_an_empty_ring_owns_nothing() -> None:
    with pytest.raises(LookupError):
        HashRing(num_points=1).owner(b"key")


@settings(max_examples=50)
@given(
    sessions=st.lists(st.integers(0, 5), min_size=1, max_size=150),
    num_workers=st.integers(1, 6),
    max_imbalance=st.sampled_from([0.1, 0.25, 1.0]),
)
def test_no_worker_gets_more_than_the_bound(
    sessions: list[int], num_workers: int, max_imbalance: float
) -> None:
    """However skewed the keys are: load <= ceil((1 + eps) * mean), the new request counted."""
    policy = sticky(max_imbalance=max_imbalance)
    workers = [WorkerId(f"worker-{i}") for i in range(num_workers)]
    loads: Counter[WorkerId] = Counter()
    for i, session in enumerate(sessions):
        seen = view(*workers, num_requests=loads)
        loads[policy.choose(request(str(i), session=str(session)), seen).worker_id] += 1
        mean = (i + 1) / num_workers
        assert max(loads.values()) <= math.ceil((1 + max_imbalance) * mean)


def test_the_bound_by_hand() -> None:
    """Seven in flight and one more on four workers: a mean of 2, a quarter more is 2.5, so 3."""
    assert bounded_capacity(num_requests=7, num_workers=4, max_imbalance=0.25) == 3


def test_a_session_keeps_its_worker_whatever_it_says() -> None:
    policy = sticky()
    chosen = {
        policy.choose(request(str(i), ("x", i), session="s"), view(A, B, C)).worker_id
        for i in range(20)
    }
    assert len(chosen) == 1


def test_a_full_worker_overflows_to_the_next_and_back() -> None:
    policy = sticky()
    home = policy.choose(request("1", session="s"), view(A, B, C)).worker_id
    busy = policy.choose(request("2", session="s"), view(A, B, C, num_requests={home: 5}))
    assert (busy.reason, busy.worker_id == home) == ("overflow", False)
    again = policy.choose(request("3", session="s"), view(A, B, C))
    assert (again.reason, again.worker_id) == ("sticky", home)


def test_slack_keeps_a_quiet_fleet_sticky() -> None:
    policy = sticky(slack_requests=4)
    home = policy.choose(request("1", session="s"), view(A, B, C)).worker_id
    busy = policy.choose(request("2", session="s"), view(A, B, C, num_requests={home: 3}))
    assert (busy.reason, busy.worker_id) == ("sticky", home)


def test_without_a_session_the_first_blocks_are_the_key() -> None:
    """Two blocks of four tokens: what comes after them does not count."""
    policy = sticky()
    workers = [WorkerId(f"worker-{i}") for i in range(40)]

    def place(*parts: tuple[str, int]) -> WorkerId:
        return policy.choose(request("r", *parts), view(*workers)).worker_id

    assert place(("s", 8), ("u", 5)) == place(("s", 8), ("v", 9))
    assert len({place((name, 8)) for name in "abcdefgh"}) > 1
    assert place(("s", 3)) == place(("s", 3))  # shorter than a block


def test_a_request_with_neither_goes_to_the_least_loaded() -> None:
    choice = sticky().choose(RoutedRequest(request_id="r"), view(A, B, load_tokens={A: 5.0}))
    assert (choice.worker_id, choice.reason) == (B, "least-loaded")


def test_a_worker_that_is_away_gets_its_keys_back() -> None:
    policy = sticky()
    before = {s: policy.choose(request("r", session=s), view(A, B, C)).worker_id for s in "abcdefg"}
    for session, home in before.items():
        there = [w for w in (A, B, C) if w != home]
        assert policy.choose(request("r", session=session), view(*there)).worker_id != home
        assert policy.choose(request("r", session=session), view(A, B, C)).worker_id == home
    policy.observe(WorkerRemoved(worker_id=A))
    after = {s: policy.choose(request("r", session=s), view(B, C)).worker_id for s in before}
    assert all(after[s] == home for s, home in before.items() if home != A)
