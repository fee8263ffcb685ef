"""The published routing demo: its numbers, and the fast form against one written plainly."""

import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.assemble.policies import build_policy
from expediter.lab.caches import Form
from expediter.lab.demo import FAST_POLICIES, compare, fixed_routes
from expediter.lab.outcome import PREFILL_SECONDS, outcome
from expediter.lab.policies import REAL_POLICIES, in_blocks, play
from expediter.lab.questions import RoutingQuestion
from expediter.lab.traffic import NEW_TOKENS, SYSTEM_TOKENS, WARM_UP, Setting, draw
from experiments.demo_table import cache_aware, longest_match
from experiments.demo_traffic import Setting as Plain
from experiments.demo_traffic import simulate

SEEDS = range(1, 9)


def test_the_published_numbers_come_out_over_eight_seeds() -> None:
    """55 / 55 / 97 / 94 %, imbalance 1.74 and 1.05; and the longest match alone."""
    found = [compare(Setting(seed=seed)) for seed in SEEDS]
    hits = {
        policy: fmean(run[i].hit_rate for run in found) for i, policy in enumerate(FAST_POLICIES)
    }
    imbalances = {
        policy: fmean(run[i].imbalance for run in found) for i, policy in enumerate(FAST_POLICIES)
    }
    assert hits == pytest.approx(
        {
            "random": 0.554,
            "round-robin": 0.552,
            "sticky": 0.968,
            "cache-aware": 0.943,
            "longest-match": 0.880,
        },
        abs=0.004,
    )
    assert imbalances["sticky"] == pytest.approx(1.77, abs=0.09)
    assert imbalances["cache-aware"] == pytest.approx(1.05, abs=0.02)
    assert imbalances["longest-match"] == pytest.approx(2.23, abs=0.1)


def test_the_page_opens_with_the_published_numbers() -> None:
    found = {outcome.policy: outcome for outcome in compare(RoutingQuestion().setting)}
    hits = [round(100 * found[policy].hit_rate) for policy in FAST_POLICIES]
    assert hits[:4] == [55, 55, 97, 94]
    assert found["sticky"].imbalance == pytest.approx(1.74, abs=0.02)
    assert found["cache-aware"].imbalance == pytest.approx(1.05, abs=0.01)


@pytest.mark.parametrize(
    ("changed", "policy", "hit_rate"),
    [
        ({"skew": 0.0}, "sticky", 0.593),
        ({"skew": 0.0}, "cache-aware", 0.590),
        ({"capacity": 50_000}, "cache-aware", 0.560),
    ],
)
def test_the_published_changes_come_out(
    changed: dict[str, float], policy: str, hit_rate: float
) -> None:
    place = FAST_POLICIES.index(policy)
    hits = [
        compare(Setting(seed=seed, **changed))[place].hit_rate  # type: ignore[arg-type]
        for seed in SEEDS[:4]
    ]
    assert fmean(hits) == pytest.approx(hit_rate, abs=0.01)


@settings(max_examples=6)
@given(
    num_replicas=st.integers(1, 12),
    capacity=st.sampled_from((10_000, 50_000, 400_000)),
    num_conversations=st.sampled_from((20, 300)),
    skew=st.sampled_from((0.0, 1.0, 1.7)),
    seed=st.integers(0, 1000),
)
def test_the_fast_form_agrees_with_the_plain_one(
    num_replicas: int, capacity: int, num_conversations: int, skew: float, seed: int
) -> None:
    ours = Setting(
        num_replicas=num_replicas,
        capacity=capacity,
        num_conversations=num_conversations,
        skew=skew,
        seed=seed,
    )
    plain = Plain(
        num_replicas=num_replicas,
        capacity=capacity,
        num_conversations=num_conversations,
        skew=skew,
    )
    expected = {}
    for policy, routes in fixed_routes(ours, draw(ours)).items():
        following = iter(routes)
        expected[policy] = simulate(lambda _, __, ___: next(following), plain, seed=seed)  # noqa: B023
    expected["cache-aware"] = simulate(cache_aware(seed, num_replicas), plain, seed=seed)
    expected["longest-match"] = simulate(longest_match(seed, num_replicas), plain, seed=seed)
    found = {each.policy: (each.hit_rate, each.imbalance) for each in compare(ours)}
    assert found == {policy: pytest.approx(values) for policy, values in expected.items()}


def test_real_text_hits_less_because_a_new_beginning_is_new() -> None:
    """With blocks: 51.9 / 51.8 / 95.0 / 93.0 %."""
    found = [in_blocks(Setting(seed=seed), build_policy) for seed in (1, 2)]
    hits = [fmean(run[place].hit_rate for run in found) for place in range(4)]
    assert hits == pytest.approx([0.519, 0.518, 0.950, 0.930], abs=0.006)


@pytest.mark.parametrize("form", ["published", "blocks"])
def test_a_policy_of_the_gateway_may_take_the_place_of_the_page_s(form: Form) -> None:
    """Least loaded ignores caches, as random does: their hits are alike, its queues shorter."""
    random_routes = play("random", form, Setting(), build_policy)
    least_loaded = play("least-loaded", form, Setting(), build_policy)
    assert least_loaded.hit_rate == pytest.approx(random_routes.hit_rate, abs=0.01)
    assert least_loaded.ttft_p95 < 0.6 * random_routes.ttft_p95


def test_the_page_s_rules_are_the_same_written_fast_and_plainly() -> None:
    fast = {each.policy: each for each in compare(Setting())}
    for policy in FAST_POLICIES:
        assert play(policy, "published", Setting(), build_policy) == fast[policy]


def test_policies_that_know_caches_beat_those_that_do_not() -> None:
    hits = {
        policy: play(policy, "blocks", Setting(), build_policy).hit_rate for policy in REAL_POLICIES
    }
    blind = max(hits.pop("least-loaded"), hits.pop("power-of-two"))
    assert min(hits.values()) > blind + 0.2


def test_more_load_makes_first_tokens_later_and_hits_no_rarer() -> None:
    slow, fast = compare(Setting(rate=5.0)), compare(Setting(rate=15.0))
    for before, after in zip(slow, fast, strict=True):
        assert after.hit_rate == before.hit_rate
        assert after.ttft_p95 >= before.ttft_p95
        assert after.busy == pytest.approx(3 * before.busy)


def test_times_to_first_token_are_those_of_a_queue() -> None:
    """Against a queue written as one would say it."""
    setting = Setting(rate=12.0)
    traffic, rng = draw(setting), random.Random(3)
    routes = [rng.randrange(8) for _ in traffic.histories]
    missed = [SYSTEM_TOKENS + history + NEW_TOKENS for history in traffic.histories]
    free_at, waits = [0.0] * 8, []
    for unit_time, route, tokens in zip(traffic.unit_times, routes, missed, strict=True):
        arrival = unit_time / setting.rate
        free_at[route] = max(arrival, free_at[route]) + tokens * PREFILL_SECONDS
        waits.append(free_at[route] - arrival)
    found = outcome("any", setting=setting, traffic=traffic, routes=routes, missed=missed)
    counted = sorted(waits[WARM_UP:])
    assert found.ttft_p50 == pytest.approx(counted[len(counted) // 2], rel=0.01)
    assert found.ttft_p95 == pytest.approx(counted[int(0.95 * len(counted))], rel=0.01)
    assert found.hit_rate == 0
