"""Settings of a whole fleet on one machine, and the file that holds all of them."""

from typing import Annotated

import msgspec

from expediter.config.gateway import GatewayConfig
from expediter.config.section import Positive, Seconds, Section
from expediter.config.worker import WorkerConfig


class FleetConfig(Section, frozen=True, kw_only=True):
    """What `expediter up` runs: workers made from `[worker]`, and how it looks after them.

    A worker that dies is started again after `restart_seconds`, doubled each time up to
    `max_restart_seconds` and forgotten once it has stayed up that long. With `num_prefill` and
    `num_decode`, these are the workers, and `num_workers` is not used; the tensor-parallel size of
    each kind is the engine's unless it is given here.
    """

    num_workers: Positive = 3
    num_prefill: Annotated[int, msgspec.Meta(ge=0)] = 0
    num_decode: Annotated[int, msgspec.Meta(ge=0)] = 0
    prefill_tensor_parallel: Positive | None = None
    decode_tensor_parallel: Positive | None = None
    start_seconds: Seconds = 300.0  # until every process answers
    stop_seconds: Seconds = 15.0  # from SIGTERM to SIGKILL
    restart_seconds: Seconds = 0.5
    max_restart_seconds: Seconds = 30.0


class Config(Section, frozen=True, kw_only=True):
    """The whole file. `up` reads all of it, `worker` and `serve` their own section."""

    fleet: FleetConfig = FleetConfig()
    gateway: GatewayConfig = GatewayConfig()
    worker: WorkerConfig = WorkerConfig()
