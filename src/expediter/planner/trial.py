"""One search for a goodput: a deployment, or one of its stages, under a workload.

A trial is plain data, so that another process can run it; equal trials give equal goodputs.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean

from msgspec.structs import replace

from expediter.config import RoutingConfig
from expediter.planner import deployment as serving
from expediter.planner.deployment import Deployment, Outcome
from expediter.planner.goodput import Goodput, Search, Target, attainment
from expediter.planner.settings import TrafficConfig
from expediter.routing.policy import RoutingPolicy
from expediter.simulation.study import BuildPolicy
from expediter.workload.catalog import DEFAULT_WORKLOAD, named_workload, read_trace
from expediter.workload.streams import faster, open_loop
from expediter.workload.turn import Turn

NUM_STAYS = 3
"""How many times as long as a request stays requests must arrive."""

MAX_LONGER = 16
"""How many times as many requests as asked for may be tried for that."""

MAX_STAY = 1e6  # seconds, for those that never end

SECONDS_PER_TOKEN = 0.02
"""Of an answer, where the next turn of a conversation waits for it."""


class Stage(StrEnum):
    """What is asked of a deployment."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Makes the policy that settings name."""

    build: BuildPolicy
    config: RoutingConfig

    def __call__(self, rng: random.Random) -> RoutingPolicy:
        """A fresh one, on the clock of the running loop."""
        return self.build(self.config, clock=asyncio.get_running_loop().time, rng=rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`start` is the rate to begin at."""

    deployment: Deployment
    stage: Stage
    traffic: TrafficConfig
    policy: Policy
    start: float


def run_trial(trial: Trial) -> Goodput:
    """The goodput of the stage alone, or of all."""
    traffic = trial.traffic
    target = Target(ttft=traffic.ttft, tpot=traffic.tpot, share=traffic.share)
    search = Search(tolerance=traffic.tolerance, num_samples=traffic.samples)

    return search.goodput(partial(_attempt, trial), target, start=trial.start)


def _attempt(trial: Trial, rate: float, sample: int) -> Sequence[Outcome]:
    """The outcomes of a sample that is long enough for the rate.

    A few hundred requests at once are no rate: to pass, arrivals must go on for some times as long
    as a request stays, else the sample is doubled.
    """
    num = trial.traffic.requests
    target = target_of(trial.traffic)
    while True:
        turns = list(faster(rate, requests(trial.traffic, sample, num)))
        found = _outcomes(trial, turns, seed=sample)
        stay = mean(min(outcome.e2e, MAX_STAY) for outcome in found)
        has_more = len(turns) == num < MAX_LONGER * trial.traffic.requests
        is_long = turns[-1].arrival_time >= NUM_STAYS * stay
        if is_long or not has_more or attainment(found, target).lowest < target.share:
            return found
        num *= 2


def _outcomes(trial: Trial, turns: Sequence[Turn], *, seed: int) -> list[Outcome]:
    deployment = trial.deployment
    match trial.stage:
        case Stage.WHOLE:
            return serving.serve(deployment, turns, seed=seed, policy=trial.policy)
        case Stage.PREFILL:
            return serving.serve_prefill(deployment, turns, seed=seed, policy=trial.policy)
        case Stage.DECODE:
            return serving.serve_decode(deployment, turns, seed=seed)


@lru_cache(maxsize=32)
def requests(traffic: TrafficConfig, sample: int, num: int) -> Sequence[Turn]:
    """`num` requests of a sample at one request a second; of a trace, its next part.

    Later turns of a conversation come at fixed times, so that rates can be compared.
    """
    if traffic.trace is not None:
        assert traffic.format is not None
        path = Path(traffic.trace).expanduser()
        turns = read_trace(path, form=traffic.format)
        turns = turns[sample * num % max(1, len(turns) - num + 1) :][:num]
    else:
        name = traffic.workload or DEFAULT_WORKLOAD
        seed = traffic.seed + sample
        turns = list(named_workload(name, rate=1.0, num_requests=num, seed=seed))
    timed = list(open_loop(turns, seconds=lambda turn: SECONDS_PER_TOKEN * turn.num_output_tokens))
    start = timed[0].arrival_time
    span = timed[-1].arrival_time - start or 1.0
    scale = (len(timed) - 1) / span
    return [replace(turn, arrival_time=(turn.arrival_time - start) * scale) for turn in timed]


def target_of(traffic: TrafficConfig) -> Target:
    """The service level."""
    return Target(ttft=traffic.ttft, tpot=traffic.tpot, share=traffic.share)


def traffic_of(config: TrafficConfig) -> TrafficConfig:
    """Only what trials need: equal for all trials of a search, and small to send."""
    return TrafficConfig(**{name: getattr(config, name) for name in _TRAFFIC})


_TRAFFIC = TrafficConfig.__struct_fields__
