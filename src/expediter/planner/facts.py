"""What the figures of a size plan are made of."""

from dataclasses import dataclass, replace
from functools import cached_property

from expediter.errors import ConfigError
from expediter.model_spec import DTYPE_BYTES
from expediter.planner import sizing
from expediter.planner.settings import SizeConfig
from expediter.planner.units import size
from expediter.simulation.catalog import named_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One answer: `value` in plain SI units, as it is `shown`, and `how` it came about."""

    name: str
    value: float
    shown: str
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Figures that belong together."""

    title: str
    figures: list[Figure]


class Facts:
    """The settings with the names in them looked up; raises ConfigError for what cannot be."""

    def __init__(self, config: SizeConfig) -> None:
        self.config = config
        self.model = config.own.model(config.model)
        self.spec = replace(self.model.spec, dtype=config.kv_dtype)
        self.gpu = config.own.gpu(config.gpu)
        self.cost = named_cost(config.cost)
        if self.memory.kv_bytes <= 0:
            raise ConfigError(self._no_room())

    @cached_property
    def traffic(self) -> sizing.Traffic:
        """The requests; a rate that is not given is 0."""
        config = self.config
        return sizing.Traffic(
            rate=config.rate or 0.0,
            shared=config.shared,
            history=config.history,
            new=config.new,
            output=config.output,
        )

    @cached_property
    def memory(self) -> sizing.Memory:
        """Of one replica."""
        config = self.config
        return sizing.replica_memory(
            self.gpu,
            num_gpus=config.gpus,
            weight_bytes=self.model.num_params * DTYPE_BYTES[config.weight_dtype],
            share=config.memory_share,
        )

    @property
    def kv_tokens(self) -> int:
        """Of one replica's cache."""
        return self.config.cache_tokens or self.memory.kv_tokens(self.spec.kv_bytes_per_token)

    @property
    def num_links(self) -> int:
        """In parallel between two replicas."""
        return self.config.links or self.config.gpus

    def _no_room(self) -> str:
        memory = self.memory
        short = size(-memory.kv_bytes)
        return (
            f"{self.config.model} does not fit: its weights take {size(memory.weight_bytes)}, "
            f"{self.config.gpus} x {self.gpu.name} offer {size(memory.usable_bytes)}: "
            f"{short} are missing, and the KV cache needs some more"
        )
