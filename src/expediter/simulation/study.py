"""Runs an experiment that settings describe."""

import asyncio
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from expediter.clock import Clock
from expediter.config import KVCacheConfig, PolicyName, RoutingConfig
from expediter.routing.policy import RoutingPolicy
from expediter.simulation.catalog import named_cost
from expediter.simulation.experiment import MakePolicy, OnAnswer, Run, simulate
from expediter.simulation.faults import fault
from expediter.simulation.fleet import FleetModel
from expediter.simulation.report import Report, report
from expediter.simulation.settings import DEFAULT_RATE, DEFAULT_REQUESTS, ExperimentConfig
from expediter.simulation.worker import WorkerModel
from expediter.workload.catalog import DEFAULT_WORKLOAD, named_workload, read_trace
from expediter.workload.turn import Turn

_GPUS = re.compile(r"tp(\d+)|(\d+)x[a-z]", re.IGNORECASE)


class BuildPolicy(Protocol):
    """Makes the policy that settings name, as the gateway does."""

    def __call__(self, config: RoutingConfig, *, clock: Clock, rng: random.Random) -> RoutingPolicy:
        """A fresh policy."""
        ...


class Study:
    """An experiment with its workload at hand; the same settings give the same reports."""

    def __init__(self, config: ExperimentConfig, *, build_policy: BuildPolicy) -> None:
        """Raises ConfigError or WorkloadError for settings that cannot be used."""
        self.config = config
        self._build_policy = build_policy
        self._fleet = fleet_model(config)
        for name in self.policies:  # one that cannot be built is better known before all runs
            self._make(name, clock=lambda: 0.0, rng=random.Random())
        self.turns = workload(config)

    def run(self, *, on_answer: OnAnswer | None = None) -> Report:
        """The same workload under each policy in turn."""
        return self.report(self.runs(on_answer=on_answer))

    def runs(self, *, on_answer: OnAnswer | None = None) -> list[Run]:
        """The same with every answer, for plots and questions of one's own."""
        return [
            simulate(
                self._fleet,
                self.turns,
                policy=self._policy(name),
                name=name,
                seed=self.config.seed,
                on_answer=on_answer,
            )
            for name in self.policies
        ]

    def report(self, runs: Sequence[Run]) -> Report:
        """What `runs` came to, by the service levels and without the warm-up of the settings."""
        config = self.config
        return report(runs, objectives=config.objectives, warmup=config.warmup)

    @property
    def policies(self) -> list[PolicyName]:
        """Each once."""
        return list(dict.fromkeys(self.config.policy))

    def to_json(self, found: Report) -> bytes:
        """The report and the settings that give it again."""
        settings = replace(self.config, json=None, csv=None, parquet=None, html=None)
        return msgspec.json.format(
            msgspec.json.encode({"experiment": settings, "runs": found.runs}), indent=2
        )

    def _policy(self, name: PolicyName) -> MakePolicy:
        return lambda rng: self._make(name, clock=asyncio.get_running_loop().time, rng=rng)

    def _make(self, name: PolicyName, *, clock: Clock, rng: random.Random) -> RoutingPolicy:
        routing = replace(self._fleet.routing, policy=name)
        return self._build_policy(routing, clock=clock, rng=rng)


def workload(config: ExperimentConfig) -> list[Turn]:
    """The requests, in a list because every policy gets them."""
    if config.trace is not None:
        assert config.format is not None
        path = Path(config.trace).expanduser()
        return read_trace(path, form=config.format, num_requests=config.requests, rate=config.rate)
    return list(
        named_workload(
            config.workload or DEFAULT_WORKLOAD,
            rate=config.rate or DEFAULT_RATE,
            num_requests=config.requests or DEFAULT_REQUESTS,
            seed=config.seed,
        )
    )


def fleet_model(config: ExperimentConfig) -> FleetModel:
    """The workers, and how the gateway in front of them is set."""
    gpus = config.gpus or gpus_of(config.cost)
    return FleetModel(
        num_workers=config.num_workers,
        worker=WorkerModel(
            cost=named_cost(config.cost),
            kv_tokens=config.cache_tokens,
            kv_cache=KVCacheConfig(block_size=config.block_size),
            scheduler=config.scheduler,
        ),
        routing=replace(config.routing, block_size=config.block_size),
        network=config.network.network(),
        faults=[
            fault(each, num_workers=config.num_workers, has_pairs=config.has_pairs)
            for each in config.faults
        ],
        publishes_events=config.kv_events,
        gpus_per_worker=gpus,
        num_prefill=config.prefill,
        num_decode=config.decode,
        fabric=config.links.fabric(cost=config.cost, gpus=gpus, is_used=config.has_pairs),
        disaggregation=config.disaggregation,
    )


def gpus_of(cost: str) -> int:
    """How many GPUs a cost model is of, by its name ("..._tp8", "...-2xh100-..."); else 1."""
    found = _GPUS.search(cost)
    return int(found[1] or found[2]) if found else 1
