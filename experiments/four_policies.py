"""Four ways to serve shared prefixes, over what is shared, how popular, how long, and how much.

- *round robin*: recomputes everything (no prefix cache);
- *locality*: the longest match alone, whatever the load;
- *cost-aware*: `slo`;
- *chunked*: colocated workers tuned for TPOT: least loaded, prefix cache on, 1,024 tokens a step.

A prompt is one of 200 shared texts by a Zipf law and a part of its own; answers have 100 tokens.
The fifth arm, prefill and decode in pools of their own with a sweep of the link, is in `two_pools`.
"""

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace as changed

from expediter.config import RoutingConfig, SchedulerConfig
from expediter.simulation.fleet import FleetModel
from expediter.simulation.report import Objective, RunReport
from expediter.workload.arrivals import poisson
from expediter.workload.distributions import Constant, Zipf
from expediter.workload.shared_prefix import Level, SharedPrefix
from expediter.workload.turn import Turn
from experiments.running import GPUS, Case, Make, Row, Table, fleet, ms, overall, run_all

BLOCK = 100
OBJECTIVE = Objective(ttft=1.0, tpot=0.05)
ALONE = RoutingConfig(max_imbalance=1e9, slack_tokens=10**9)
ARMS = ("round robin", "locality", "cost-aware", "chunked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One workload: share of the prompt that is shared, Zipf exponent, prompt tokens, rate."""

    sharing: float = 0.8
    skew: float = 1.0
    context: int = 4000
    rate: float = 40.0


COLUMNS = (
    "arm",
    "TTFT p50 ms",
    "p99",
    "TPOT p99 ms",
    "E2E p99 ms",
    "in SLO %",
    "goodput/s a GPU",
    "hit rate %",
    "evicted tokens",
)
USUAL = Point()
SWEEPS: dict[str, list[Point]] = {
    "sharing": [replace(USUAL, sharing=share) for share in (0.0, 0.5, 0.8, 0.95)],
    "skew": [replace(USUAL, skew=skew) for skew in (0.0, 1.0, 1.5)],
    "context": [
        replace(USUAL, context=context, rate=rate)
        for context, rate in ((1000, 120.0), (4000, 40.0), (16_000, 10.0))
    ],
    "rate": [replace(USUAL, rate=rate) for rate in (20.0, 40.0, 60.0, 80.0)],
}


@lru_cache(maxsize=2)
def workload(point: Point, num_requests: int) -> list[Turn]:
    rng = random.Random(1)
    num_shared = int(point.context * point.sharing)
    levels = (Level(texts=Zipf(200, point.skew), tokens=Constant(num_shared)),)
    made = SharedPrefix(
        name="shared",
        levels=levels if num_shared else (),
        question_tokens=Constant(point.context - num_shared),
        answer_tokens=Constant(100),
    )
    return list(islice(made.turns(poisson(point.rate).times(rng), rng=rng), num_requests))


def arm(name: str) -> FleetModel:
    """One way to serve."""
    sizes = {"kv_tokens": 400_000}
    if name == "chunked":
        small = SchedulerConfig(max_batched_tokens=1024, max_running=256)
        return fleet("least-loaded", block_size=BLOCK, worker=sizes, scheduler=small)
    if name == "locality":
        return fleet("cache-aware", block_size=BLOCK, worker=sizes, routing=ALONE)
    if name == "cost-aware":
        return fleet("slo", block_size=BLOCK, worker=sizes)
    without = fleet("round-robin", block_size=BLOCK, worker=sizes)
    kv_cache = changed(without.worker.kv_cache, prefix_caching=False)
    return replace(without, worker=replace(without.worker, kv_cache=kv_cache))


def run(*, quick: bool) -> list[Table]:
    """One table a sweep."""
    num_requests = 100 if quick else 1200
    sweeps = {"sharing": SWEEPS["sharing"][2:3]} if quick else SWEEPS
    return [_sweep(name, points, num_requests) for name, points in sweeps.items()]


def _sweep(name: str, points: list[Point], num_requests: int) -> Table:
    cases = [
        Case(
            name=each,
            fleet=arm(each),
            turns=Make(workload, point, num_requests),
            objective=OBJECTIVE,
        )
        for point in points
        for each in ARMS
    ]
    values = [float(getattr(point, name)) for point in points for _ in ARMS]
    found = run_all(cases, processes=1 if num_requests < 1000 else None)
    rows = [_row(value, result) for value, result in zip(values, found, strict=True)]
    return Table(title=f"Over {name}", columns=(name, *COLUMNS), rows=rows)


def _row(value: float, found: RunReport) -> Row:
    every = overall(found)
    assert every.ttft is not None
    assert every.tpot is not None
    assert every.e2e is not None
    assert every.attainment is not None
    return (
        value,
        found.policy,
        ms(every.ttft.p50.value),
        ms(every.ttft.p99.value),
        ms(every.tpot.p99.value),
        ms(every.e2e.p99.value),
        round(100 * every.attainment.value, 1),
        round(every.goodput_per_worker / GPUS, 3),
        round(100 * every.token_hit_rate, 1),
        sum(worker.num_evicted_blocks for worker in found.workers) * BLOCK,
    )
