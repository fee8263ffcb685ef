"""A burst in which the most popular prefix crowds out the others, by class.

A, B and C share a system prompt of 8,000 tokens. A adds 200 and comes 100 times a second, B adds
one of 50 customers' 400 and comes 5 times, C adds nothing and comes 20 times. Longest match alone
is `cache-aware` without its guard. Before the burst, slow traffic has left all texts on one
worker or a few.
"""

from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace as changed

from expediter.config import RoutingConfig, SchedulerConfig
from expediter.config.routing import PrebleConfig
from expediter.simulation.report import Objective, RunReport
from expediter.workload.catalog import named_workload
from expediter.workload.streams import relabelled
from expediter.workload.turn import Turn
from experiments.plot import log_bars
from experiments.running import FIT, Case, Make, Row, Table, fleet, ms, run_all

UNGUARDED = RoutingConfig(max_imbalance=1e9, slack_tokens=10**9)
E2 = RoutingConfig(preble=PrebleConfig(gpu_cost=FIT, capacity_tokens=400_000))
ARMS = {
    "longest match alone": ("cache-aware", UNGUARDED, "fcfs"),
    "longest match, fair queue": ("cache-aware", UNGUARDED, "prefix-quotas"),
    "cache-aware": ("cache-aware", RoutingConfig(), "fcfs"),
    "E2": ("preble", E2, "fcfs"),
    "E2, fair queue": ("preble", E2, "prefix-quotas"),
    "slo": ("slo", RoutingConfig(), "fcfs"),
}
RATE = 125.0
BLOCK = 48  # divides neither 8,000 nor 8,200: a worker computes one equal full block a step
NUM_WARM, START = 100, 60.0
COLUMNS = (
    "arm",
    "class",
    "TTFT p50 ms",
    "p99",
    "queueing p99 ms",
    "in SLO %",
    "fairness",
    "imbalance",
)
OBJECTIVE = Objective(ttft=0.5, tpot=0.05)


@lru_cache(maxsize=1)
def burst(num_requests: int) -> list[Turn]:
    """After a minute of hardly any traffic, which leaves all texts where a router puts them."""
    warm = named_workload("hot-prefix", rate=2.0, num_requests=NUM_WARM, seed=2)
    hot = named_workload("hot-prefix", rate=RATE, num_requests=num_requests, seed=1)
    later = [changed(turn, arrival_time=turn.arrival_time + START) for turn in hot]
    return [*relabelled(warm, label="warm"), *later]


def run(*, quick: bool) -> list[Table]:
    """A row for each arm and class."""
    num_requests = 400 if quick else 4000
    arms = {name: ARMS[name] for name in ("longest match alone", "slo")} if quick else ARMS
    cases = [
        Case(
            name=name,
            fleet=fleet(
                policy,
                block_size=BLOCK,
                worker={"kv_tokens": 400_000},
                routing=routing,
                scheduler=SchedulerConfig(policy=queue, max_batched_tokens=2048, max_running=256),
            ),
            turns=Make(burst, num_requests),
            objective=OBJECTIVE,
            warmup=0.0,
        )
        for name, (policy, routing, queue) in arms.items()
    ]
    found = run_all(cases, processes=1 if quick else None)
    rows = [row for result in found for row in _rows(result)]
    if not quick:
        bars = {f"{row[0]}: {row[1]}": float(row[3]) for row in rows}
        log_bars("hot_prefix", "TTFT p99 of each class in the burst", bars)
    return [Table(title=f"Hot prefix, {num_requests:,} requests", columns=COLUMNS, rows=rows)]


def _rows(found: RunReport) -> Iterator[Row]:
    for each in (c for c in found.classes if c.label in {"A", "B", "C"}):
        assert each.ttft is not None
        assert each.queueing is not None
        assert each.attainment is not None
        yield (
            found.policy,
            each.label,
            ms(each.ttft.p50.value),
            ms(each.ttft.p99.value),
            ms(each.queueing.p99.value),
            round(100 * each.attainment.value, 1),
            round(found.fairness, 3),
            round(found.imbalance, 2),
        )
