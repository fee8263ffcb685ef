"""Policies against cases worked out by hand, and how a fleet fares under them."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.load import WorkerId
from expediter.routing.cache_aware import CacheAware
from expediter.routing.outstanding import OutstandingWork
from expediter.routing.policy import LeastLoaded, Random, RoundRobin, Turns
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

REQUEST = RoutedRequest(request_id="r")


def view(loads: dict[str, float], matched: dict[str, int] | None = None) -> ClusterView:
    workers = [WorkerView(worker_id=WorkerId(w), load_tokens=load) for w, load in loads.items()]
    return ClusterView(
        workers=workers, matched={WorkerId(w): n for w, n in (matched or {}).items()}
    )


def cache_aware(*, load_weight: float = 0.0, slack_tokens: int = 1000) -> CacheAware:
    return CacheAware(load_weight=load_weight, max_imbalance=0.2, slack_tokens=slack_tokens)


def choose(
    policy: CacheAware, loads: dict[str, float], matched: dict[str, int] | None = None
) -> Choice:
    return policy.choose(REQUEST, view(loads, matched))


def test_the_longest_match_wins() -> None:
    choice = choose(cache_aware(), {"a": 0, "b": 0, "c": 0}, {"a": 100, "b": 300})
    assert (choice.worker_id, choice.matched_tokens, choice.reason) == ("b", 300, "longest-match")
    assert choice.scores == {"a": 100, "b": 300, "c": 0}


def test_load_counts_against_a_match_by_its_weight() -> None:
    """300 - 0.5 * 500 = 50 is less than 100 - 0.5 * 0."""
    policy = cache_aware(load_weight=0.5)
    assert choose(policy, {"a": 0, "b": 500}, {"a": 100, "b": 300}).worker_id == "a"


def test_one_request_in_flight_does_not_push_a_conversation_off_its_worker() -> None:
    """Load 256 of one decoding request is three times the mean of three, and nobody's overload."""
    choice = choose(cache_aware(), {"a": 256, "b": 0, "c": 0}, {"a": 160})
    assert (choice.worker_id, choice.reason) == ("a", "longest-match")


def test_an_overloaded_worker_loses_its_match() -> None:
    """Mean 3000, limit 3600; a may exceed it by max(slack 1000, 500 - 0 matched): 4600 < 9000."""
    choice = choose(cache_aware(), {"a": 9000, "b": 0, "c": 0}, {"a": 500})
    assert (choice.worker_id, choice.matched_tokens, choice.reason) == ("b", 0, "overloaded")


def test_a_request_waits_for_less_than_it_would_compute_elsewhere() -> None:
    """The same load, but 8000 matched tokens: waiting for 9000 - 3600 is cheaper."""
    choice = choose(cache_aware(), {"a": 9000, "b": 0, "c": 0}, {"a": 8000})
    assert (choice.worker_id, choice.reason) == ("a", "longest-match")


def test_what_another_worker_holds_need_not_be_computed_there() -> None:
    """b holds 7500 of the 8000: moving costs 500 tokens, which is less than the wait."""
    choice = choose(cache_aware(), {"a": 9000, "b": 0, "c": 0}, {"a": 8000, "b": 7500})
    assert (choice.worker_id, choice.reason) == ("b", "overloaded")


def test_equal_scores_go_to_the_least_loaded() -> None:
    assert choose(cache_aware(), {"a": 30, "b": 10, "c": 20}).worker_id == "b"
    matched = {"a": 64, "b": 64, "c": 64}
    assert choose(cache_aware(), {"a": 30, "b": 20, "c": 10}, matched).worker_id == "c"


def test_equal_scores_and_loads_take_turns() -> None:
    policy = cache_aware()
    chosen = [choose(policy, {"a": 0, "b": 0, "c": 0}).worker_id for _ in range(6)]
    assert chosen == ["a", "b", "c", "a", "b", "c"]


def test_the_only_worker_left_is_chosen_however_loaded() -> None:
    assert choose(cache_aware(), {"a": 1e9}).worker_id == "a"


def test_no_match_is_named_so() -> None:
    assert choose(cache_aware(), {"a": 0, "b": 0}).reason == "no-match"


def concurrent(policy: CacheAware, requests: list[tuple[int, dict[str, int]]]) -> Counter[str]:
    """Place requests that all stay in flight: (prompt tokens, matches)."""
    work, counts = OutstandingWork(), Counter[str]()
    for num_tokens, matched in requests:
        loads = {w: work.tokens(WorkerId(w)) for w in "abc"}
        choice = choose(policy, loads, matched)
        work.start(
            choice.worker_id,
            prefill_tokens=num_tokens - choice.matched_tokens,
            max_output_tokens=None,
        )
        counts[choice.worker_id] += 1
    return counts


def test_cold_prompts_that_come_at_once_spread_evenly() -> None:
    counts = concurrent(cache_aware(), [(500, {})] * 30)
    assert counts == {"a": 10, "b": 10, "c": 10}


def test_requests_for_a_prefix_that_all_hold_spread_evenly() -> None:
    counts = concurrent(cache_aware(), [(2050, {"a": 2000, "b": 2000, "c": 2000})] * 30)
    assert counts == {"a": 10, "b": 10, "c": 10}


def test_requests_for_a_prefix_that_one_holds_spill_over_to_the_others() -> None:
    counts = concurrent(cache_aware(slack_tokens=1024), [(1050, {"a": 1000})] * 60)
    load = {"a": counts["a"] * (50 + 256)} | {w: counts[w] * (1050 + 256) for w in "bc"}
    mean = sum(load.values()) / 3
    assert min(counts.values()) >= 6
    assert load["a"] <= 1.2 * mean + 1024 + 306


def test_random_uses_every_worker_and_only_the_given_generator() -> None:
    workers = view({"a": 0, "b": 0, "c": 0})
    policies = [Random(rng=random.Random(1)) for _ in range(2)]
    first, second = (
        [policy.choose(REQUEST, workers).worker_id for _ in range(100)] for policy in policies
    )
    assert first == second
    assert set(first) == {"a", "b", "c"}


def test_round_robin_gives_each_worker_its_turn_even_as_they_come_and_go() -> None:
    policy = RoundRobin()
    two, three = view({"a": 0, "b": 0}), view({"a": 0, "b": 0, "c": 0})
    chosen = [policy.choose(REQUEST, v).worker_id for v in (two, two, three, three, two)]
    assert chosen == ["a", "b", "c", "a", "b"]


def test_least_loaded_takes_the_idlest_and_takes_turns_among_equals() -> None:
    policy = LeastLoaded()
    chosen = [policy.choose(REQUEST, view({"a": 5, "b": 1, "c": 1})).worker_id for _ in range(4)]
    assert chosen == ["b", "c", "b", "c"]


def test_outstanding_work_shrinks_at_the_first_token_and_returns_to_nothing() -> None:
    work, worker = OutstandingWork(), WorkerId("a")
    one = work.start(worker, prefill_tokens=1000, max_output_tokens=10)
    two = work.start(worker, prefill_tokens=50, max_output_tokens=None)
    assert work.tokens(worker) == 1000 + 10 * 2 + 50 + 128 * 2
    work.prefilled(one)
    assert work.tokens(worker) == 10 * 2 + 50 + 128 * 2
    work.finish(one)
    assert (work.tokens(worker), work.num_requests(worker)) == (50 + 128 * 2, 1)
    work.finish(two)
    assert (work.tokens(worker), work.num_requests(worker)) == (0.0, 0)


@given(st.lists(st.tuples(st.sampled_from(["ab", "bcd", "c", "abcde"]), st.integers(1, 9))))
def test_rounds_give_the_turns_that_a_look_at_each_worker_would(
    stretches: list[tuple[str, int]],
) -> None:
    """Pools that overlap, each asked for a number of times in a row."""
    policy, turns = RoundRobin(), Turns()
    views = {names: view(dict.fromkeys(names, 0.0)) for names, _ in stretches}
    for names, num_requests in stretches:
        for _ in range(num_requests):
            expected = turns.waited_longest(views[names].workers).worker_id
            turns.take(expected)
            assert policy.choose(REQUEST, views[names]).worker_id == expected


@pytest.mark.parametrize("policy", [LeastLoaded(), RoundRobin(), Random(rng=random.Random(0))])
def test_policies_that_ignore_caches_say_so(policy: LeastLoaded | RoundRobin | Random) -> None:
    assert not policy.uses_prefixes
