"""DistServe's formulas against the simulation that stands behind every other figure."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.config import SchedulerConfig
from expediter.planner.deployment import Deployment, Instance, Pool, serve
from expediter.planner.queueing import mean_ttft, mean_ttft_two_stages, mean_ttft_two_ways
from expediter.simulation.costs import LinearCost
from expediter.workload.arrivals import poisson
from expediter.workload.distributions import Constant
from expediter.workload.shared_prefix import SharedPrefix
from expediter.workload.streams import first

SECONDS = 0.1  # 1,000 tokens of 0.1 ms
NUM_REQUESTS = 20_000


def simulated_ttft(rate: float, *, ms_per_token: float = 0.1, pp: int = 1) -> float:
    """Mean over prompts of 1,000 tokens served one by one, or in so many stages."""
    instance = Instance(
        tp=1, pp=pp, cost=LinearCost(prefill_ms_per_token=ms_per_token), kv_tokens=10_000_000
    )
    alone = SchedulerConfig(max_batched_tokens=1000, chunked_prefill=False)
    deployment = Deployment(
        prefill=Pool(instance=instance, num_instances=1, scheduler=alone, prefix_caching=False)
    )
    prompts = SharedPrefix(
        name="prompts", levels=(), question_tokens=Constant(1000), answer_tokens=Constant(1)
    )
    rng = random.Random(1)
    turns = list(first(NUM_REQUESTS, prompts.turns(poisson(rate).times(rng), rng=rng)))
    outcomes = serve(deployment, turns)
    return sum(outcome.ttft for outcome in outcomes) / len(outcomes)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_prompts_wait_as_in_an_m_d_1_queue(load: float) -> None:
    expected = mean_ttft(load / SECONDS, SECONDS)
    assert simulated_ttft(load / SECONDS) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("load", [0.5, 1.0, 1.6])
def test_two_stages_take_in_a_prompt_when_the_first_is_free(load: float) -> None:
    expected = mean_ttft_two_stages(load / SECONDS, SECONDS)
    assert simulated_ttft(load / SECONDS, pp=2) == pytest.approx(expected, rel=0.06)


def test_a_layer_split_two_ways_is_one_faster_queue() -> None:
    speedup, rate = 1.6, 10.0
    expected = mean_ttft_two_ways(rate, SECONDS, speedup=speedup)
    found = simulated_ttft(rate, ms_per_token=0.1 / speedup)
    assert found == pytest.approx(expected, rel=0.06)


@given(load=st.floats(0.01, 0.99))
def test_splitting_layers_wins_at_low_rates_and_a_pipeline_at_high_ones(load: float) -> None:
    """The paper's observation; with a speed-up of 1.6 they cross between 0.9 and all of one GPU."""
    rate = load / SECONDS
    alone, piped = mean_ttft(rate, SECONDS), mean_ttft_two_stages(rate, SECONDS)
    split = mean_ttft_two_ways(rate, SECONDS, speedup=1.6)
    assert piped < alone
    assert split < alone
    assert (split < piped) or load > 0.5
    assert mean_ttft_two_stages(1.7 / SECONDS, SECONDS) < math.inf
    assert mean_ttft_two_ways(1.7 / SECONDS, SECONDS, speedup=1.6) == math.inf


def test_beyond_what_can_be_served_the_queue_grows_without_end() -> None:
    assert mean_ttft(1 / SECONDS, SECONDS) == math.inf
    assert mean_ttft_two_stages(2 / SECONDS, SECONDS) == math.inf
