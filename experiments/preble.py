"""Preble (ICLR'25): E2 against round robin and consistent hashing, on its workloads and its costs.

Two workers of Mistral-7B on an A6000 each, with the released regression, 198,516 tokens of KV, the
longest-prefix order that SGLang v0.1.12 had, and steps of 8,192 tokens. Requests are made
from the paper's Table 1. "Paper" are figures read off its plots or, for Programming, from
the released table: E2 / round robin / consistent hashing.
"""

import random
from functools import lru_cache
from itertools import islice

from expediter.config import RoutingConfig, SchedulerConfig
from expediter.config.routing import PrebleConfig
from expediter.simulation.published import PrebleMistral
from expediter.simulation.report import RunReport
from expediter.workload.arrivals import poisson
from expediter.workload.preble import even_keys, preble
from expediter.workload.turn import Turn
from experiments.running import Case, Make, Row, Table, fleet, overall, run_all

KV_TOKENS = 198_516
E2 = RoutingConfig(preble=PrebleConfig(gpu_cost="mistral-7b-a6000", capacity_tokens=KV_TOKENS))
ARMS = ("preble", "round-robin", "sticky", "slo")
POINTS: dict[tuple[str, float], str] = {
    ("video-qa", 3.0): "3.7 / 34 / 24 s mean",
    ("video-qa", 5.0): "11.9 / 50 / 33 s mean",
    ("loogle", 0.5): "14.4 / 46.5 / 31 s mean",
    ("loogle", 0.8): "36 / 67 / 37 s mean",
    ("toolbench", 9.0): "2 / 7.3 s TTFT p50, 16 / 33 s p99",
    ("toolbench", 15.0): "15 / 24 s TTFT p50, 141 / 258 s p99",
    ("programming", 1.0): "8.95 / 9.08 s p50",
    ("programming", 2.0): "20.9 / 37.6 s p50, 70 / 141 s p99",
    ("embodied-agent", 9.0): "",
}


COLUMNS = (
    "workload",
    "policy",
    "mean s",
    "times E2's",
    "p99 s",
    "TTFT p50 s",
    "p99",
    "hit rate %",
    "paper",
)
NUM_KEYS = {
    ("video-qa", 3.0): 100,
    ("video-qa", 5.0): 174,
    ("loogle", 0.5): 24,
    ("loogle", 0.8): 30,
    ("programming", 1.0): 100,
    ("programming", 2.0): 160,
}  # 200 for the others
SECONDS = {"loogle": 561, "programming": 625}  # of a run; 300 for the others


@lru_cache(maxsize=1)
def workload(name: str, rate: float, num_requests: int, num_keys: int) -> list[Turn]:
    """As the released benchmark does it: every key equally often, shuffled."""
    rng = random.Random(f"{name} 1")
    made = preble(name, keys=even_keys(num_keys, num_requests=num_requests))
    return list(islice(made.turns(poisson(rate).times(rng), rng=rng), num_requests))


def _turns(name: str, rate: float, *, quick: bool) -> Make[list[Turn]]:
    num_requests = 150 if quick else int(SECONDS.get(name, 300) * rate)
    num_keys = 20 if quick else NUM_KEYS.get((name, rate), 200)
    return Make(workload, name, rate, num_requests, num_keys)


def run(*, quick: bool) -> list[Table]:
    """A row for each workload, rate and policy."""
    points = [("toolbench", 9.0)] if quick else list(POINTS)
    arms = ("preble", "round-robin") if quick else ARMS
    cases = [_case(policy, name, rate, quick=quick) for name, rate in points for policy in arms]
    found = run_all(cases, processes=1 if quick else None)
    rows: list[Row] = []
    for number, (name, rate) in enumerate(points):
        group = found[number * len(arms) : (number + 1) * len(arms)]
        rows += [_row((name, rate), result, compared=group[0]) for result in group]
    return [Table(title="Preble's workloads on two A6000", columns=COLUMNS, rows=rows)]


def _case(policy: str, name: str, rate: float, *, quick: bool) -> Case:
    order = SchedulerConfig(policy="longest-prefix", max_batched_tokens=8192, max_running=256)
    model = fleet(
        policy,
        block_size=64,
        cost=PrebleMistral(),
        worker={"num": 2, "kv_tokens": KV_TOKENS},
        routing=E2,
        scheduler=order,
    )
    return Case(name=policy, fleet=model, turns=_turns(name, rate, quick=quick), warmup=0.0)


def _row(point: tuple[str, float], found: RunReport, *, compared: RunReport) -> Row:
    every, first = overall(found), overall(compared).e2e
    assert first is not None
    assert every.ttft is not None
    assert every.e2e is not None
    return (
        f"{point[0]} {point[1]:g}/s",
        found.policy,
        round(every.e2e.mean.value, 2),
        round(every.e2e.mean.value / first.mean.value, 2),
        round(every.e2e.p99.value, 1),
        round(every.ttft.p50.value, 2),
        round(every.ttft.p99.value, 1),
        round(100 * every.token_hit_rate, 1),
        POINTS[point] if found is compared else "",
    )
