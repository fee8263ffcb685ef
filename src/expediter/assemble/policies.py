"""A routing policy from its settings."""

import random
from typing import assert_never

from msgspec.structs import asdict

from expediter.clock import Clock
from expediter.config import RoutingConfig
from expediter.errors import ConfigError
from expediter.routing.cache_aware import CacheAware
from expediter.routing.dynamo import DynamoKv
from expediter.routing.fleet_history import FleetHistory
from expediter.routing.gpu_cost import NAMED_COSTS, GpuCost
from expediter.routing.policy import LeastLoaded, Random, RoundRobin, RoutingPolicy
from expediter.routing.power_of_two import PowerOfTwo
from expediter.routing.preble import PrebleE2
from expediter.routing.sglang import SglangCacheAware
from expediter.routing.slo import PredictedCost
from expediter.routing.sticky import Sticky


def build_policy(config: RoutingConfig, *, clock: Clock, rng: random.Random) -> RoutingPolicy:
    """The policy that `config.policy` names."""
    match config.policy:
        case "cache-aware":
            return CacheAware(
                load_weight=config.load_weight,
                max_imbalance=config.max_imbalance,
                slack_tokens=config.slack_tokens,
            )
        case "round-robin" | "least-loaded":
            return RoundRobin() if config.policy == "round-robin" else LeastLoaded()
        case "random":
            return Random(rng=rng)
        case "power-of-two":
            return PowerOfTwo(rng=rng)
        case "sticky":
            return _sticky(config)
        case "sglang":
            return SglangCacheAware(block_size=config.block_size, **asdict(config.sglang))
        case "dynamo":
            return DynamoKv(rng=rng, block_size=config.block_size, **asdict(config.dynamo))
        case "preble":
            return _preble(config, clock=clock)
        case "slo":
            return _slo(config, clock=clock)
        case _:
            assert_never(config.policy)


def _sticky(config: RoutingConfig) -> Sticky:
    return Sticky(
        max_imbalance=config.max_imbalance,
        block_size=config.block_size,
        **asdict(config.sticky),
    )


def _preble(config: RoutingConfig, *, clock: Clock) -> PrebleE2:
    preble = config.preble
    history = FleetHistory(
        cost=_gpu_cost("preble", preble.gpu_cost),
        block_size=config.block_size,
        window_seconds=preble.window_seconds,
        expected_output_tokens=preble.expected_output_tokens,
        capacity_tokens=preble.capacity_tokens,
        max_blocks=preble.max_blocks,
    )
    return PrebleE2(
        history,
        clock=clock,
        rebalance_threshold=preble.rebalance_threshold,
        imbalance_ratio=preble.imbalance_ratio,
    )


def _slo(config: RoutingConfig, *, clock: Clock) -> PredictedCost:
    return PredictedCost(
        clock=clock,
        cost=_gpu_cost("slo", config.slo.gpu_cost),
        block_size=config.block_size,
        decode_weight=config.slo.decode_weight,
        congestion_weight=config.slo.congestion_weight,
    )


def _gpu_cost(section: str, name: str) -> GpuCost:
    cost = NAMED_COSTS.get(name)
    if cost is None:
        allowed = ", ".join(NAMED_COSTS)
        raise ConfigError(f"gateway.routing.{section}.gpu-cost is {name!r}; allowed are {allowed}")
    return cost
