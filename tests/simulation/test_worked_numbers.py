"""The worked example of eight replicas, with the real policies on the virtual clock.

A prompt is 2,000 shared tokens, 3,000 of history and 1,000 new ones; a 70B model's prefill
takes 0.1 ms a token. A random replica holds the shared part, and the history one time in eight.
"""

import pytest
from fleets import cache_aware, fleet, poisson, random_policy, text, turn

from expediter.simulation.experiment import MakePolicy, simulate
from expediter.simulation.report import ClassReport, report
from expediter.workload.turn import Turn

NUM_CONVERSATIONS = 1200


def conversations() -> list[Turn]:
    """Every conversation's first turn at 20/s, then every second turn at 20/s."""
    shared = text("system", 2000)
    first_at = poisson(20.0, num=NUM_CONVERSATIONS, seed=1)
    next_at = poisson(20.0, num=NUM_CONVERSATIONS, seed=2)
    histories = [text(f"history {n}", 3000, after=shared) for n in range(NUM_CONVERSATIONS)]
    firsts = [turn(at, history, 2) for at, history in zip(first_at, histories, strict=True)]
    nexts = [
        turn(first_at[-1] + 60 + at, text("new", 1000, after=history), 16, label="next")
        for at, history in zip(next_at, histories, strict=True)
    ]
    return firsts + nexts


@pytest.fixture(scope="module")
def workload() -> list[Turn]:
    return conversations()


def second_turns(workload: list[Turn], policy: MakePolicy) -> ClassReport:
    model = fleet(num_workers=8, block_size=200, kv_tokens=10_000_000)
    run = simulate(model, workload, policy=policy, name="")
    (found,) = [c for c in report([run]).runs[0].classes if c.label == "next"]
    assert found.num_failed == 0
    return found


def test_random_routing_finds_the_history_one_time_in_eight(workload: list[Turn]) -> None:
    """(2,000 + 3,000 / 8) / 6,000 = 40 %; 20/s of the rest are 72,500 tokens/s, 0.36 s each."""
    found = second_turns(workload, random_policy)
    assert found.token_hit_rate == pytest.approx(2375 / 6000, abs=0.015)
    computed = (1 - found.token_hit_rate) * 6000
    assert 20 * computed == pytest.approx(72_500, rel=0.025)
    assert computed * 0.1e-3 == pytest.approx(0.36, abs=0.01)


def test_cache_aware_routing_finds_all_of_it(workload: list[Turn]) -> None:
    """5,000 / 6,000 = 83 %; 20/s of the rest are 20,000 tokens/s, 0.10 s each."""
    found = second_turns(workload, cache_aware)
    assert found.token_hit_rate == pytest.approx(5000 / 6000, abs=0.01)
    assert found.predicted_hit_rate == pytest.approx(found.token_hit_rate, abs=0.01)
    assert 20 * (1 - found.token_hit_rate) * 6000 == pytest.approx(20_000, rel=0.06)
    assert found.prefill is not None
    # 0.1 s for 1,000 tokens, and the decodes that share its pass.
    assert 0.100 <= found.prefill.p50.value < 0.125
