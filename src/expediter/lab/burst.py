"""A hot prefix bursting onto a fleet: the simulator's run of it, as frames to be played.

Three classes share a system prompt of 8,000 tokens. A adds a popular tool's 200 and comes most
often; B adds one of 50 customers' 400 and comes rarely; C adds nothing. Slow traffic before the
burst has left all texts on a worker or a few, and a router that looks at the longest match alone
keeps them there. The fleet is eight 70B workers on 8 H100 each, with measured step times.
"""

import asyncio
import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from msgspec.structs import replace

from expediter.config import KVCacheConfig, RoutingConfig, SchedulerConfig
from expediter.config.routing import PrebleConfig
from expediter.routing.policy import RoutingPolicy
from expediter.simulation.answer import Answer
from expediter.simulation.catalog import DEFAULT_COST, named_cost
from expediter.simulation.experiment import Run, simulate
from expediter.simulation.fleet import FleetModel
from expediter.simulation.report import ClassReport, Objective, report
from expediter.simulation.study import BuildPolicy
from expediter.simulation.worker import WorkerModel
from expediter.workload.catalog import named_workload
from expediter.workload.streams import relabelled
from expediter.workload.turn import Turn

Arm = Literal["longest-match", "cache-aware", "preble", "slo"]
Queue = Literal["fcfs", "prefix-quotas"]

CLASSES = ("A", "B", "C")
WORKERS, KV_TOKENS = 8, 400_000
BLOCK = 48  # divides neither 8,000 nor 8,200: a worker computes one equal full block a step
NUM_WARM, WARM_RATE, START, TAIL = 100, 2.0, 60.0, 4.0
NUM_FRAMES = 240
OBJECTIVE = Objective(ttft=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Which policy, how the workers order their queues, and how hard it comes."""

    policy: Arm
    queue: Queue
    rate: float  # requests a second, all classes
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """One class; seconds. `in_time` is the share with a first token within half a second."""

    label: str
    num_requests: int
    ttft_p50: float
    ttft_p99: float
    queueing_p50: float
    queueing_p99: float
    in_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """`waiting` and `running` have a list a worker, in it one a class, in it one number a frame.

    Waiting is until a worker takes the request into a batch, running until its answer ends.
    """

    times: list[float]  # seconds since the burst began
    waiting: list[list[list[int]]]
    running: list[list[list[int]]]
    classes: list[ClassResult]
    imbalance: float
    fairness: float
    hit_rate: float


def film(burst: Burst, build_policy: BuildPolicy) -> Film:
    """Simulate, and count at each frame who waits and who runs."""

    def policy(rng: random.Random) -> RoutingPolicy:
        clock = asyncio.get_running_loop().time
        return build_policy(fleet.routing, clock=clock, rng=rng)

    fleet = _fleet(burst)
    run = simulate(fleet, _turns(burst), policy=policy, name=burst.policy)
    found = report([run], objectives={"all": OBJECTIVE}).runs[0]
    times = _times(run, burst)
    begin = _begin(run)
    return Film(
        times=[time - begin for time in times],
        waiting=_counts(run, times, waiting=True),
        running=_counts(run, times, waiting=False),
        classes=[_result(each) for each in found.classes if each.label in CLASSES],
        imbalance=found.imbalance,
        fairness=found.fairness,
        hit_rate=found.classes[0].token_hit_rate,
    )


def _turns(burst: Burst) -> Iterator[Turn]:
    warm = named_workload("hot-prefix", rate=WARM_RATE, num_requests=NUM_WARM, seed=burst.seed + 1)
    yield from relabelled(warm, label="warm")
    num_requests = max(1, round(burst.rate * burst.seconds))
    hot = named_workload("hot-prefix", rate=burst.rate, num_requests=num_requests, seed=burst.seed)
    for turn in hot:
        yield replace(turn, arrival_time=turn.arrival_time + START)


def _fleet(burst: Burst) -> FleetModel:
    routing = RoutingConfig(
        policy="cache-aware" if burst.policy == "longest-match" else burst.policy,
        block_size=BLOCK,
        preble=PrebleConfig(gpu_cost="llama3-70b-8xh100-sglang", capacity_tokens=KV_TOKENS),
    )
    if burst.policy == "longest-match":
        routing = replace(routing, max_imbalance=1e9, slack_tokens=10**9)
    return FleetModel(
        num_workers=WORKERS,
        worker=WorkerModel(
            cost=named_cost(DEFAULT_COST),
            kv_tokens=KV_TOKENS,
            kv_cache=KVCacheConfig(block_size=BLOCK),
            scheduler=SchedulerConfig(policy=burst.queue, max_batched_tokens=2048, max_running=256),
        ),
        routing=routing,
        gpus_per_worker=8,
    )


def _hot(run: Run) -> list[Answer]:
    return [answer for answer in run.answers if answer.turn.label in CLASSES]


def _begin(run: Run) -> float:
    """When the burst began, on the run's clock."""
    first = _hot(run)[0]
    return first.arrived_at - (first.turn.arrival_time - START)


def _times(run: Run, burst: Burst) -> list[float]:
    """Of the frames, until the burst is answered or has been over for long."""
    begin = _begin(run)
    last = max(answer.finished_at or 0.0 for answer in _hot(run))
    end = min(last, begin + 2 * burst.seconds + TAIL)
    step = (end - begin) / (NUM_FRAMES - 1)
    return [begin + step * frame for frame in range(NUM_FRAMES - 1)] + [end]


def _counts(run: Run, times: list[float], *, waiting: bool) -> list[list[list[int]]]:
    changes = [[[0] * (len(times) + 1) for _ in CLASSES] for _ in run.workers]
    numbers = {each.worker_id: number for number, each in enumerate(run.workers)}
    for answer in _hot(run):
        if answer.worker_id is None or answer.scheduled_at is None:
            continue
        begin = answer.arrived_at if waiting else answer.scheduled_at
        end = answer.scheduled_at if waiting else answer.finished_at
        row = changes[numbers[answer.worker_id]][CLASSES.index(answer.turn.label)]
        row[bisect_left(times, begin)] += 1
        row[bisect_left(times, times[-1] if end is None else end)] -= 1
    return [[list(accumulate(row[:-1])) for row in worker] for worker in changes]


def _result(found: ClassReport) -> ClassResult:
    assert found.ttft is not None
    assert found.queueing is not None
    assert found.attainment is not None
    return ClassResult(
        label=found.label,
        num_requests=found.num_requests,
        ttft_p50=found.ttft.p50.value,
        ttft_p99=found.ttft.p99.value,
        queueing_p50=found.queueing.p50.value,
        queueing_p99=found.queueing.p99.value,
        in_time=found.attainment.value,
    )
