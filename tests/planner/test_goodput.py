"""The search for the highest rate, on systems whose answer is known, and on simulated ones."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.config import SchedulerConfig
from expediter.errors import ConfigError
from expediter.planner.deployment import Deployment, Instance, Outcome, Pool, serve, serve_prefill
from expediter.planner.goodput import Goodput, Search, Target, attainment, wilson
from expediter.simulation.costs import LinearCost
from expediter.workload.arrivals import poisson
from expediter.workload.distributions import Constant, Lognormal
from expediter.workload.shared_prefix import SharedPrefix
from expediter.workload.streams import faster, first
from expediter.workload.turn import Turn

TARGET = Target(ttft=1.0, tpot=0.1)
COST = LinearCost()


def outcome(*, ttft: float = 0.0, tpot: float = 0.0) -> Outcome:
    return Outcome(label="all", ttft=ttft, tpot=tpot, e2e=ttft)


def turns(rate: float, *, num: int = 300, output: int = 40, sample: int = 0) -> list[Turn]:
    requests = SharedPrefix(
        name="requests",
        levels=(),
        question_tokens=Lognormal(1000, 300),
        answer_tokens=Constant(output),
    )
    rng = random.Random(f"sample {sample}")
    return list(faster(rate, first(num, requests.turns(poisson(1.0).times(rng), rng=rng))))


def pool(num_instances: int = 1, *, kv_tokens: int = 1_000_000) -> Pool:
    return Pool(
        instance=Instance(tp=1, cost=COST, kv_tokens=kv_tokens),
        num_instances=num_instances,
        scheduler=SchedulerConfig(max_batched_tokens=4096, max_running=256),
    )


@given(limit=st.floats(0.02, 500.0), share=st.sampled_from([0.5, 0.9, 0.99]))
def test_a_sharp_limit_is_found_to_the_tolerance(limit: float, share: float) -> None:
    def attempt(rate: float, sample: int) -> Sequence[Outcome]:
        del sample
        return [outcome(ttft=0.5 if rate <= limit else 2.0)] * 100

    search = Search(tolerance=0.02)
    found = search.goodput(attempt, Target(ttft=1.0, tpot=0.1, share=share))
    assert found.rate <= limit < found.failed_rate
    assert found.failed_rate / found.rate <= 1.02


def test_what_fails_at_every_rate_has_no_goodput() -> None:
    found = Search().goodput(lambda *_: [outcome(tpot=1.0)] * 100, TARGET)
    assert found == Goodput(rate=0.0, failed_rate=found.failed_rate, attainment=None, num_trials=2)


def test_what_never_fails_is_said() -> None:
    with pytest.raises(ConfigError, match="no rate up to"):
        Search().goodput(lambda *_: [outcome()] * 100, TARGET)


def test_a_clear_case_takes_one_sample_and_a_close_one_takes_all() -> None:
    """70 % of 100 is below 90 % beyond doubt, 88 % is not."""

    def trials(share: float) -> int:
        in_time = round(100 * share)
        sample = [outcome()] * in_time + [outcome(ttft=9.0)] * (100 - in_time)
        seen = []

        def attempt(rate: float, number: int) -> Sequence[Outcome]:
            seen.append(number)
            return sample if rate > 0.9 else [outcome()] * 100

        Search(tolerance=0.99).goodput(attempt, TARGET)
        return max(seen) + 1

    assert trials(0.70) == 1
    assert trials(0.88) == 3


@given(num=st.integers(1, 10_000), hits=st.integers(0, 10_000))
def test_the_interval_holds_the_share_and_stays_within_bounds(num: int, hits: int) -> None:
    share = min(hits, num) / num
    low, high = wilson(share, num, z=1.96)
    assert -1e-9 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1 + 1e-9


def test_both_levels_must_be_met() -> None:
    found = attainment([outcome(), outcome(ttft=2.0), outcome(tpot=0.2), outcome()], TARGET)
    assert (found.ttft, found.tpot, found.lowest) == (0.75, 0.75, 0.75)


def test_two_pools_serve_a_lone_request_in_the_time_of_both_stages() -> None:
    """1,000 tokens take 0.1 s; then the KV 10 us a token, and 39 steps of 20.2 ms."""
    lone = turns(0.001, num=1)
    length = lone[0].num_prompt_tokens
    deployment = Deployment(prefill=pool(), decode=pool(), transfer_seconds=10e-6)
    (found,) = serve(deployment, lone)
    assert found.ttft == pytest.approx(length * 0.1e-3, rel=1e-6)
    assert found.tpot * 39 == pytest.approx(39 * 0.0202 + length * 10e-6, rel=1e-6)


def test_decodes_in_a_pool_of_their_own_are_never_interrupted() -> None:
    """At 6 prompts/s of 0.1 s each, decodes beside them stall; apart they keep their pace."""
    work = turns(6.0)
    apart = serve(Deployment(prefill=pool(), decode=pool()), work)
    together = serve(Deployment(prefill=pool(2)), work)
    assert max(o.tpot for o in apart) < 0.024
    assert max(o.tpot for o in together) > 0.030


def test_a_request_of_one_token_needs_no_decode() -> None:
    work = turns(1.0, num=20, output=1)
    deployment = Deployment(prefill=pool(), decode=pool())
    found = serve(deployment, work)
    assert [o.tpot for o in found] == [0.0] * 20
    assert found == serve_prefill(deployment, work)


def test_more_instances_have_more_goodput_and_equal_seeds_the_same() -> None:
    def goodput(num_instances: int) -> Goodput:
        deployment = Deployment(prefill=pool(num_instances))
        return Search(tolerance=0.1, num_samples=1).goodput(
            lambda rate, sample: serve(deployment, turns(rate, sample=sample), seed=sample), TARGET
        )

    one, two = goodput(1), goodput(2)
    assert 1.6 < two.rate / one.rate < 3.0
    assert goodput(1) == one


def test_the_order_of_outcomes_is_that_of_the_requests() -> None:
    work = turns(20.0, num=100)
    found = serve(Deployment(prefill=pool(), decode=pool()), work)
    alone = [COST.prefill_ms_per_token * turn.num_prompt_tokens / 1000 for turn in work]
    assert all(o.ttft >= least - 1e-9 for o, least in zip(found, alone, strict=True))
