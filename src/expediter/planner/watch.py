"""`expediter plan watch`: the last minutes of a live gateway's traffic, replayed on other fleets.

The gateway tells what came and what it shared, not what was said. Each fleet that is tried gets
just that traffic on the virtual clock: other policies on as many workers as there are, more and
fewer workers, and the same workers split into a prefill and a decode pool.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from expediter.config import PolicyName, RoutingConfig, SchedulerConfig
from expediter.errors import ConfigError
from expediter.planner.deployment import Deployment, Instance, Outcome, Pool, serve
from expediter.planner.goodput import Attainment, Target, attainment
from expediter.planner.links import named_link
from expediter.planner.settings import WatchConfig
from expediter.planner.trial import Policy
from expediter.simulation.catalog import named_cost
from expediter.simulation.runners import Runner, in_turn
from expediter.simulation.study import BuildPolicy
from expediter.workload.catalog import read_trace
from expediter.workload.turn import Turn

MIN_REQUESTS = 50
"""Fewer say nothing about a tail."""

Fetch = Callable[[str], bytes]
"""Gets a path of the admin port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A fleet that could be."""

    policy: PolicyName
    deployment: Deployment
    is_current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the traffic would have got; latencies in seconds."""

    option: Option
    attainment: Attainment
    ttft: float
    ttft_p99: float
    tpot: float

    @property
    def num_gpus(self) -> int:
        """What it takes."""
        return self.option.deployment.num_gpus


def read_traffic(fetch: Fetch, config: WatchConfig) -> list[Turn]:
    """The newest requests of the gateway; ConfigError if there are too few to judge by."""
    with tempfile.TemporaryDirectory(prefix="expediter-") as folder:
        path = Path(folder) / "traffic.jsonl"
        path.write_bytes(fetch(f"/trace?seconds={config.seconds:g}"))
        turns = read_trace(path, form="mooncake") if path.stat().st_size else []
    if len(turns) < MIN_REQUESTS:
        raise ConfigError(
            f"the gateway had {len(turns)} requests in the last {config.seconds:g} s; it takes "
            f"{MIN_REQUESTS} to say anything: wait, or give more seconds"
        )
    return turns[-config.requests :]


def options(config: WatchConfig, *, policy: PolicyName, num_workers: int) -> list[Option]:
    """The fleet as it is, and what could be instead."""
    most = config.max_workers or 2 * num_workers
    as_is = Option(policy=policy, deployment=_whole(config, num_workers), is_current=True)
    return [as_is, *_policies(config, as_is, num_workers), *_sizes(config, as_is, most)]


def replay_all(
    config: WatchConfig,
    turns: Sequence[Turn],
    tried: Sequence[Option],
    *,
    build_policy: BuildPolicy,
    runner: Runner = in_turn,
) -> list[Replayed]:
    """Each option under the same traffic, in the order in which they were given."""
    work = partial(_replay, turns=turns, config=config, build_policy=build_policy)
    found = dict(runner(work, tried))
    return [found[place] for place in range(len(tried))]


def advice(found: Sequence[Replayed], config: WatchConfig) -> Replayed:
    """The fewest GPUs that meet the service level, else what comes nearest to it.

    Among equals the fleet as it is, then the least time to the first token.
    """
    good = [each for each in found if each.attainment.lowest >= config.share]
    if good:
        return min(good, key=lambda e: (e.num_gpus, not e.option.is_current, e.ttft))
    return max(found, key=lambda e: (e.attainment.lowest, e.option.is_current, -e.ttft))


def _policies(config: WatchConfig, as_is: Option, num_workers: int) -> Iterator[Option]:
    for policy in config.policies:
        if policy != as_is.policy:
            yield Option(policy=policy, deployment=as_is.deployment)
    for num_prefill in range(1, num_workers) if config.splits else ():
        split = _split(config, num_prefill, num_workers - num_prefill)
        yield Option(policy=as_is.policy, deployment=split)


def _sizes(config: WatchConfig, as_is: Option, most: int) -> Iterator[Option]:
    """Other numbers of workers, under the policy there is and the first that is asked for."""
    policies = dict.fromkeys((as_is.policy, config.policies[0]))
    for num in range(1, most + 1):
        if num != as_is.deployment.prefill.num_instances:
            for policy in policies:
                yield Option(policy=policy, deployment=_whole(config, num))


def _whole(config: WatchConfig, num_workers: int) -> Deployment:
    return Deployment(prefill=_pool(config, num_workers), block_size=config.block_size)


def _split(config: WatchConfig, num_prefill: int, num_decode: int) -> Deployment:
    speed = config.gpus * named_link(config.transfer).bytes_per_second
    return Deployment(
        prefill=_pool(config, num_prefill),
        decode=_pool(config, num_decode),
        transfer_seconds=config.kv_bytes / speed,
        block_size=config.block_size,
    )


def _pool(config: WatchConfig, num: int) -> Pool:
    return Pool(
        instance=Instance(
            tp=config.gpus, cost=named_cost(config.cost), kv_tokens=config.cache_tokens
        ),
        num_instances=num,
        scheduler=SchedulerConfig(max_batched_tokens=config.budget, max_running=config.max_running),
    )


def _replay(
    option: Option, *, turns: Sequence[Turn], config: WatchConfig, build_policy: BuildPolicy
) -> Replayed:
    routing = RoutingConfig(policy=option.policy, block_size=config.block_size)
    policy = Policy(build=build_policy, config=routing)
    outcomes = serve(option.deployment, turns, policy=policy)
    target = Target(ttft=config.ttft, tpot=config.tpot, share=config.share)
    return Replayed(
        option=option,
        attainment=attainment(outcomes, target),
        ttft=mean(each.ttft for each in outcomes),
        ttft_p99=_p99(outcomes),
        tpot=mean(each.tpot for each in outcomes),
    )


def _p99(outcomes: Sequence[Outcome]) -> float:
    ordered = sorted(each.ttft for each in outcomes)
    return ordered[int(0.99 * (len(ordered) - 1))]
