"""An experiment as settings: what a TOML file or a command line says of it."""

from typing import Annotated

import msgspec

from expediter.config import (
    DisaggregationConfig,
    NotNegative,
    PolicyName,
    Positive,
    RoutingConfig,
    SchedulerConfig,
    Seconds,
    Section,
)
from expediter.results.objective import ClassObjective, Objective, objectives
from expediter.simulation.catalog import DEFAULT_COST
from expediter.simulation.fabric import LinksConfig
from expediter.simulation.faults import FaultConfig, NetworkConfig
from expediter.workload.catalog import TraceFormat

DEFAULT_RATE = 20.0
DEFAULT_REQUESTS = 2000
DEFAULT_POLICIES: tuple[PolicyName, ...] = ("cache-aware", "round-robin")
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class ReplicaScheduler(SchedulerConfig, frozen=True, kw_only=True):
    """A worker's settings, with the budget of a large GPU server."""

    max_batched_tokens: Positive = 8192
    max_running: Positive = 256


class ExperimentConfig(Section, frozen=True, kw_only=True):
    """One workload, generated (`workload`) or recorded (`trace`), under each policy.

    `rate` and `requests` are those of the trace if not given. `ttft`, `tpot` and `e2e` are the
    service level in seconds of every class that has none in `slo`. `json`, `csv`, `parquet` and
    `html` are files to write. `routing`, `disaggregation` and `scheduler` are set as in a gateway
    and a worker, but for what is said here. With `prefill` or `decode` workers, those and as many
    as `both` says are the workers, and `workers` is not used.
    """

    workload: str | None = None
    trace: str | None = None
    format: TraceFormat | None = None
    rate: Seconds | None = None  # requests a second
    requests: Positive | None = None
    seed: int = 0
    policy: Annotated[tuple[PolicyName, ...], msgspec.Meta(min_length=1)] = DEFAULT_POLICIES
    workers: Positive = 8
    prefill: Number = 0
    decode: Number = 0
    both: Number = 0  # that take either part
    cost: str = DEFAULT_COST
    gpus: Positive | None = None  # of a worker; from the cost's name if not given
    block_size: Positive = 16  # tokens
    cache_tokens: Positive = 1_300_000  # a worker
    kv_events: bool = True  # whether workers publish them
    warmup: Share = 0.0  # of the requests, not counted
    ttft: NotNegative | None = None
    tpot: NotNegative | None = None
    e2e: NotNegative | None = None
    slo: tuple[ClassObjective, ...] = ()
    faults: tuple[FaultConfig, ...] = ()
    network: NetworkConfig = NetworkConfig()
    links: LinksConfig = LinksConfig()
    json: str | None = None
    csv: str | None = None
    parquet: str | None = None
    html: str | None = None
    routing: RoutingConfig = RoutingConfig()
    scheduler: ReplicaScheduler = ReplicaScheduler()
    disaggregation: DisaggregationConfig = DisaggregationConfig()

    @property
    def has_pairs(self) -> bool:
        """Whether workers have roles."""
        return self.prefill + self.decode > 0

    @property
    def num_workers(self) -> int:
        """All of them."""
        return self.prefill + self.decode + self.both if self.has_pairs else self.workers

    @property
    def objectives(self) -> dict[str, Objective]:
        """Service levels by class."""
        default = Objective(ttft=self.ttft, tpot=self.tpot, e2e=self.e2e)
        return objectives(self.slo, default=default)

    def __post_init__(self) -> None:
        """Settings that contradict each other are errors."""
        if self.workload is not None and self.trace is not None:
            raise ValueError("workload and trace: there can be only one of them")
        if (self.trace is None) != (self.format is None):
            raise ValueError("trace and format: one needs the other")
        if self.cache_tokens < self.block_size:
            raise ValueError("cache-tokens: less than one block")
        self._check_roles()
        usual = RoutingConfig()
        if (self.routing.policy, self.routing.block_size) != (usual.policy, usual.block_size):
            raise ValueError("routing: policy and block-size are not in this section but above it")

    def _check_roles(self) -> None:
        if self.both and not self.has_pairs:
            raise ValueError("both: only beside workers for prefill or decode; else set workers")
        if self.has_pairs and not (self.both or (self.prefill and self.decode)):
            raise ValueError("prefill and decode: one needs the other, or workers that do both")
        if self.disaggregation.handover == "sglang":
            raise ValueError("disaggregation.handover: pairs of SGLang are not simulated")
