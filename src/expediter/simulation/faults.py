"""Faults and a network's faults as settings; `trouble` and `client` say what they do."""

from typing import Annotated, assert_never

import msgspec

from expediter.config import NotNegative, Seconds, Section
from expediter.errors import ConfigError
from expediter.simulation.client import Network
from expediter.simulation.trouble import (
    Crash,
    Fault,
    NetworkDelay,
    Slowdown,
    StaleLoad,
    TransferFailure,
)

WorkerNumber = Annotated[int, msgspec.Meta(ge=0)]


class CrashConfig(Section, frozen=True, kw_only=True, tag_field="kind", tag="crash"):
    """See `trouble.Crash`."""

    worker: WorkerNumber
    at: NotNegative
    seconds: Seconds


class SlowdownConfig(Section, frozen=True, kw_only=True, tag_field="kind", tag="slowdown"):
    """See `trouble.Slowdown`."""

    worker: WorkerNumber
    at: NotNegative
    seconds: Seconds
    factor: Seconds


class TransferFailureConfig(
    Section, frozen=True, kw_only=True, tag_field="kind", tag="transfer-failure"
):
    """See `trouble.TransferFailure`."""

    worker: WorkerNumber
    at: NotNegative
    seconds: Seconds


class NetworkDelayConfig(Section, frozen=True, kw_only=True, tag_field="kind", tag="network-delay"):
    """See `trouble.NetworkDelay`."""

    worker: WorkerNumber
    at: NotNegative
    seconds: Seconds
    delay: Seconds


class StaleLoadConfig(Section, frozen=True, kw_only=True, tag_field="kind", tag="stale-load"):
    """See `trouble.StaleLoad`; without `late` the load does not change any more."""

    worker: WorkerNumber
    at: NotNegative
    seconds: Seconds
    late: Seconds | None = None


FaultConfig = (
    CrashConfig | SlowdownConfig | TransferFailureConfig | NetworkDelayConfig | StaleLoadConfig
)


class NetworkConfig(Section, frozen=True, kw_only=True):
    """See `client.Network`."""

    request_seconds: NotNegative = 0.0
    response_seconds: NotNegative = 0.0
    event_seconds: NotNegative = 0.0
    event_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    load_reports: bool = False

    def network(self) -> Network:
        """What the fleet takes."""
        return Network(**msgspec.structs.asdict(self))


def fault(config: FaultConfig, *, num_workers: int, has_pairs: bool = False) -> Fault:
    """What the fleet takes; ConfigError if there is no such worker, or nothing to strike."""
    if config.worker >= num_workers:
        raise ConfigError(f"faults: there is no worker {config.worker} of {num_workers} from 0")
    said = msgspec.structs.asdict(config)
    match config:
        case CrashConfig():
            return Crash(**said)
        case SlowdownConfig():
            return Slowdown(**said)
        case TransferFailureConfig():
            if not has_pairs:
                raise ConfigError("faults: transfers fail only where workers have roles")
            return TransferFailure(**said)
        case NetworkDelayConfig():
            return NetworkDelay(**said)
        case StaleLoadConfig():
            return StaleLoad(**said)
        case _:
            assert_never(config)
