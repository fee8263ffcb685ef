"""What a worker's operator says about hand-overs, and how its model tells of layers."""

from collections.abc import Callable
from dataclasses import dataclass

from expediter.transfer.lease import LEASE_SECONDS
from expediter.transfer.messages import EngineId
from expediter.transfer.source import EXPECT_SECONDS

LayerListener = Callable[[int], None]
WatchLayers = Callable[[LayerListener | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Where to listen, what to tell others, and how long to hold and to wait."""

    engine_id: EngineId
    host: str
    port: int = 0
    advertised_host: str | None = None
    lease_seconds: float = LEASE_SECONDS
    patience_seconds: float = EXPECT_SECONDS
    role: str = "both"
