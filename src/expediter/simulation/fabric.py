"""Links between simulated workers, as settings and as what a fleet takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Literal

import msgspec

from expediter.config import NotNegative, Positive, Seconds, Section
from expediter.errors import ConfigError
from expediter.load import WorkerId
from expediter.simulation.catalog import ROOFLINE
from expediter.simulation.links import GB, Interconnect, SimulatedLinks
from expediter.simulation.models import model_names, named_model

GPUS_PER_NODE = 8
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What joins the workers. `kv_bytes_per_token` is all that a token's KV weighs.

    Neighbours by number share a node. With `overlaps` a step's KV is copied while it is computed,
    else when the step is over. `failure_share` of the transfers break.
    """

    interconnect: Interconnect = field(default_factory=Interconnect)
    workers_per_node: int = 1
    kv_bytes_per_token: int = 0
    overlaps: bool = True
    failure_share: float = 0.0

    def links(self, worker_ids: Sequence[WorkerId], *, rng: Random) -> SimulatedLinks:
        """Between workers that are numbered as they stand here."""
        nodes = {w: f"node-{n // self.workers_per_node}" for n, w in enumerate(worker_ids)}
        return SimulatedLinks(nodes, self.interconnect, failure_share=self.failure_share, rng=rng)


class LinksConfig(Section, frozen=True, kw_only=True):
    """Links between workers: Gb/s one way, of each of a worker's GPUs.

    Without `workers_per_node`, as many as eight GPUs make. `kv_bytes_per_token` is the model's if
    the cost's name says which; `overlap` "none" is for engines whose KV can be read only when all
    of a step is computed.
    """

    intra_node_gbps: Seconds = 3600.0  # NVLink of an H100: 450 GB/s
    inter_node_gbps: Seconds = 400.0
    latency_us: NotNegative = 10.0
    workers_per_node: Positive | None = None
    kv_bytes_per_token: Positive | None = None
    overlap: Literal["layers", "none"] = "layers"
    failure_share: Share = 0.0

    def fabric(self, *, cost: str, gpus: int, is_used: bool) -> Fabric:
        """What the fleet takes; ConfigError if it is used and nobody knows how much KV there is."""
        num_bytes = self.kv_bytes_per_token or kv_bytes_of(cost)
        if is_used and num_bytes is None:
            raise ConfigError(f"links.kv-bytes-per-token: {cost} does not say which model it is of")
        latency = self.latency_us * 1e-6
        interconnect = Interconnect(
            num_gpus=gpus,
            nvlink_bandwidth=self.intra_node_gbps * GB / 8,
            nvlink_latency=latency,
            num_nics=gpus,
            nic_bandwidth=self.inter_node_gbps * GB / 8,
            nic_latency=latency,
        )
        return Fabric(
            interconnect=interconnect,
            workers_per_node=self.workers_per_node or max(1, GPUS_PER_NODE // gpus),
            kv_bytes_per_token=num_bytes or 0,
            overlaps=self.overlap == "layers",
            failure_share=self.failure_share,
        )


def kv_bytes_of(cost: str) -> int | None:
    """KV bytes of a token of the model that a cost model's name begins with; None for others."""
    if cost.startswith(ROOFLINE):
        return named_model(cost.removeprefix(ROOFLINE).rpartition(":")[0]).spec.kv_bytes_per_token
    known = [name for name in model_names() if cost.startswith(name)]
    return named_model(max(known, key=len)).spec.kv_bytes_per_token if known else None
