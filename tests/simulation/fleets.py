"""Small fleets and workloads whose numbers can be done by hand."""

import random
from collections.abc import Sequence

from expediter.config import KVCacheConfig, RoutingConfig, SchedulerConfig
from expediter.routing.cache_aware import CacheAware
from expediter.routing.policy import LeastLoaded, Random, RoundRobin, RoutingPolicy
from expediter.simulation.client import Network
from expediter.simulation.costs import CostModel, LinearCost
from expediter.simulation.fleet import Fault, FleetModel
from expediter.simulation.worker import WorkerModel
from expediter.workload.transcript import EMPTY, Transcript
from expediter.workload.turn import Turn


def cache_aware(rng: random.Random) -> RoutingPolicy:
    del rng
    return CacheAware(load_weight=0.0, max_imbalance=0.2, slack_tokens=1024)


def random_policy(rng: random.Random) -> RoutingPolicy:
    return Random(rng=rng)


def round_robin(rng: random.Random) -> RoutingPolicy:
    del rng
    return RoundRobin()


def least_loaded(rng: random.Random) -> RoutingPolicy:
    del rng
    return LeastLoaded()


def fleet(
    *,
    num_workers: int = 2,
    block_size: int = 100,
    kv_tokens: int = 1_000_000,
    cost: CostModel | None = None,
    network: Network | None = None,
    faults: Sequence[Fault] = (),
) -> FleetModel:
    return FleetModel(
        num_workers=num_workers,
        worker=WorkerModel(
            cost=cost or LinearCost(),
            kv_tokens=kv_tokens,
            kv_cache=KVCacheConfig(block_size=block_size),
            scheduler=SchedulerConfig(max_batched_tokens=8192, max_running=256),
        ),
        routing=RoutingConfig(block_size=block_size),
        network=network or Network(),
        faults=faults,
    )


def turn(at: float, prompt: Transcript, num_output: int, *, label: str = "all") -> Turn:
    """A prompt whose answer nobody else gets."""
    answer = prompt.then(f"answer at {at}", num_output, role="assistant")
    return Turn(arrival_time=at, transcript=answer, label=label)


def text(name: str, num_tokens: int, *, after: Transcript = EMPTY) -> Transcript:
    """The first tokens of the text with that name, after another."""
    return after.then(name, num_tokens)


def poisson(rate: float, *, num: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    times, now = [], 0.0
    for _ in range(num):
        now += rng.expovariate(rate)
        times.append(now)
    return times
