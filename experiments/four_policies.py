"""Ways to serve shared prefixes, over what is shared, how popular, how long, how much, how linked.

- *round robin*: recomputes everything (no prefix cache);
- *locality*: the longest match alone, whatever the load;
- *cost-aware*: `slo`;
- *chunked*: colocated workers tuned for TPOT: least loaded, prefix cache on, 1,024 tokens a step;
- *disaggregated*: four workers prefill and four decode; KV moves layer by layer over eight links
  of 400 Gb/s, and short prompts stay with the decode worker.

A prompt is one of 200 shared texts by a Zipf law and a part of its own; answers have 100 tokens.
The last table is *disaggregated* over the speed of its links, with both ways to hand over: both
workers at once, and one after the other, as vLLM's routers do.
"""

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace as changed

from expediter.config import DisaggregationConfig, RoutingConfig, SchedulerConfig
from expediter.simulation.fabric import Fabric
from expediter.simulation.fleet import FleetModel
from expediter.simulation.links import GB, Interconnect
from expediter.simulation.report import Objective, RunReport
from expediter.workload.arrivals import poisson
from expediter.workload.distributions import Constant, Zipf
from expediter.workload.shared_prefix import Level, SharedPrefix
from expediter.workload.turn import Turn
from experiments.running import (
    GPUS,
    Case,
    Make,
    Row,
    Table,
    fleet,
    ms,
    overall,
    run_all,
)

BLOCK = 100
OBJECTIVE = Objective(ttft=1.0, tpot=0.05)
ALONE = RoutingConfig(max_imbalance=1e9, slack_tokens=10**9)
ARMS = ("round robin", "locality", "cost-aware", "chunked", "disaggregated")
KV_BYTES = 327_680  # a token of the 70B model
LINKS = {"NVLink, 450 GB/s": 450.0, "400 Gb/s": 50.0, "100 Gb/s": 12.5, "10 Gb/s": 1.25}
LINKS |= {"3 Gb/s": 0.375, "1 Gb/s": 0.125}  # GB/s of each of eight
HANDOVERS = {"at once": "expediter", "one after the other": "vllm"}


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
LINK_COLUMNS = (
    "8 links of",
    "hand-over",
    "TTFT p50 ms",
    "p99",
    "TPOT p50 ms",
    "p99 ",
    "exposed p50 ms",
    "p99  ",
    "in SLO %",
    "GB moved",
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
    if name == "disaggregated":
        return apart(LINKS["400 Gb/s"], HANDOVERS["at once"])
    if name == "locality":
        return fleet("cache-aware", block_size=BLOCK, worker=sizes, routing=ALONE)
    if name == "cost-aware":
        return fleet("slo", block_size=BLOCK, worker=sizes)
    without = fleet("round-robin", block_size=BLOCK, worker=sizes)
    kv_cache = changed(without.worker.kv_cache, prefix_caching=False)
    return replace(without, worker=replace(without.worker, kv_cache=kv_cache))


def apart(gigabytes: float, handover: str) -> FleetModel:
    """Prefill and decode in pools of their own, with links of so many GB/s."""
    whole = fleet("slo", block_size=BLOCK, worker={"kv_tokens": 400_000})
    links = Interconnect(nic_bandwidth=gigabytes * GB)
    return replace(
        whole,
        num_prefill=whole.num_workers // 2,
        num_decode=whole.num_workers // 2,
        fabric=Fabric(interconnect=links, kv_bytes_per_token=KV_BYTES),
        disaggregation=DisaggregationConfig(handover=handover),
    )


def run(*, quick: bool) -> list[Table]:
    """One table a sweep."""
    num_requests = 100 if quick else 1200
    sweeps = {"sharing": SWEEPS["sharing"][2:3]} if quick else SWEEPS
    tables = [_sweep(name, points, num_requests) for name, points in sweeps.items()]
    return [*tables, _over_links(num_requests)]


def _over_links(num_requests: int) -> Table:
    """The usual point, once with one pool and then with two."""
    speeds = list(LINKS.items()) if num_requests >= 1000 else list(LINKS.items())[1::3]
    arms = {
        (link, way): apart(speed, handover)
        for way, handover in HANDOVERS.items()
        for link, speed in speeds
    }
    cases = [
        Case(name=name, fleet=made, turns=Make(workload, USUAL, num_requests), objective=OBJECTIVE)
        for name, made in [("one pool", arm("cost-aware")), *(("", each) for each in arms.values())]
    ]
    found = run_all(cases, processes=1 if num_requests < 1000 else None)
    names = [("none: one pool", ""), *arms]
    rows = [(*name, *_link_row(result)) for name, result in zip(names, found, strict=True)]
    title = f"Two pools over their links, {USUAL.rate:g} requests/s"
    return Table(title=title, columns=LINK_COLUMNS, rows=rows)


def _link_row(found: RunReport) -> Row:
    every = overall(found)
    parts = [
        ms(part.value)
        for stage in (every.ttft, every.tpot, every.transfer)
        if stage is not None
        for part in (stage.p50, stage.p99)
    ]
    assert every.attainment is not None
    moved = found.waste.transferred_bytes / GB
    return (*parts, round(100 * every.attainment.value, 1), round(moved))


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
