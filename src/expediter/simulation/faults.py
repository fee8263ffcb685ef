"""Faults and a network's faults as settings; `fleet` and `client` say what they do."""

from typing import Annotated, assert_never

import msgspec

from expediter.config import NotNegative, Seconds, Section
from expediter.errors import ConfigError
from expediter.simulation.client import Network
from expediter.simulation.fleet import Crash, Fault, Slowdown

WorkerNumber = Annotated[int, msgspec.Meta(ge=0)]


class CrashConfig(Section, frozen=True, kw_only=True, tag_field="kind", tag="crash"):
    """See `fleet.Crash`."""

    worker: WorkerNumber
    at: NotNegative
    seconds: Seconds


class SlowdownConfig(Section, frozen=True, kw_only=True, tag_field="kind", tag="slowdown"):
    """See `fleet.Slowdown`."""

    worker: WorkerNumber
    at: NotNegative
    seconds: Seconds
    factor: Seconds


FaultConfig = CrashConfig | SlowdownConfig


class NetworkConfig(Section, frozen=True, kw_only=True):
    """See `client.Network`."""

    request_seconds: NotNegative = 0.0
    response_seconds: NotNegative = 0.0
    event_seconds: NotNegative = 0.0
    event_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0

    def network(self) -> Network:
        """What the fleet takes."""
        return Network(**msgspec.structs.asdict(self))


def fault(config: FaultConfig, *, num_workers: int) -> Fault:
    """What the fleet takes; ConfigError if there is no such worker."""
    if config.worker >= num_workers:
        raise ConfigError(f"faults: there is no worker {config.worker} of {num_workers} from 0")
    match config:
        case CrashConfig():
            return Crash(worker=config.worker, at=config.at, seconds=config.seconds)
        case SlowdownConfig():
            return Slowdown(
                worker=config.worker, at=config.at, seconds=config.seconds, factor=config.factor
            )
        case _:
            assert_never(config)
