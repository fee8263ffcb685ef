"""What a gateway needs to serve requests with two workers, from its settings."""

from expediter.clock import Clock
from expediter.cluster.handover import Dialect, Splitting
from expediter.config import DisaggregationConfig
from expediter.errors import ConfigError
from expediter.gateway.legs import Legs
from expediter.routing.disaggregated import Disaggregated


def build_splitting(config: DisaggregationConfig, *, num_processes: int, clock: Clock) -> Splitting:
    """Raises ConfigError for a regression that does not exist, or roles nobody would agree on."""
    if config.rebalance.enabled and num_processes > 1:
        raise ConfigError(
            "gateway.disaggregation.rebalance needs gateway.processes = 1: "
            "each process would change roles by itself"
        )
    policy = Disaggregated.configured(config, clock=clock)
    return Splitting(bodies=Legs(), policy=policy, lease_seconds=config.lease_seconds)


def configured_dialect(config: DisaggregationConfig) -> Dialect | None:
    """None where workers are asked."""
    return None if config.handover == "auto" else Dialect(config.handover)
