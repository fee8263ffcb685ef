"""Facts of one's own beside the built-in ones: GPUs, links and models from a file."""

from typing import Annotated

import msgspec

from expediter.config import NotNegative, Positive, Section
from expediter.errors import ConfigError
from expediter.model_spec import ModelSpec
from expediter.planner.links import Link, named_link
from expediter.simulation.models import named_model
from expediter.simulation.roofline import GPUS, Gpu, ModelFacts

AboveZero = Annotated[float, msgspec.Meta(gt=0)]
OWN = "the settings"


class OwnGpu(Section, frozen=True, kw_only=True):
    """Dense 16-bit FLOP/s, bytes/s and bytes of memory, as on a datasheet."""

    flops: AboveZero
    memory_bandwidth: AboveZero
    memory_bytes: AboveZero


class OwnLink(Section, frozen=True, kw_only=True):
    """One way."""

    bytes_per_second: AboveZero
    latency_seconds: NotNegative = 0.0


class OwnModel(Section, frozen=True, kw_only=True):
    """A decoder; `latent_size` is what a layer keeps of a token in latent attention."""

    params: AboveZero
    layers: Positive
    heads: Positive
    kv_heads: Positive
    head_size: Positive = 128
    latent_size: Annotated[int, msgspec.Meta(ge=0)] = 0


class OwnFacts(Section, frozen=True, kw_only=True):
    """By name; a name that is built in means what is said here."""

    gpus: dict[str, OwnGpu] = msgspec.field(default_factory=dict)
    links: dict[str, OwnLink] = msgspec.field(default_factory=dict)
    models: dict[str, OwnModel] = msgspec.field(default_factory=dict)

    def gpu(self, name: str) -> Gpu:
        """ConfigError says which there are."""
        own = self.gpus.get(name)
        if own is not None:
            return Gpu(
                name=name,
                flops=own.flops,
                memory_bandwidth=own.memory_bandwidth,
                memory_bytes=own.memory_bytes,
                source=OWN,
            )
        if name not in GPUS:
            known = ", ".join([*GPUS, *self.gpus])
            raise ConfigError(f"no GPU is called {name!r}; there are {known}")
        return GPUS[name]

    def link(self, name: str) -> Link:
        """See `named_link`."""
        own = self.links.get(name)
        if own is None:
            return named_link(name)
        return Link(
            name=name,
            bytes_per_second=own.bytes_per_second,
            latency_seconds=own.latency_seconds,
            source=OWN,
        )

    def model(self, name: str) -> ModelFacts:
        """See `named_model`."""
        own = self.models.get(name)
        if own is None:
            return named_model(name)
        spec = ModelSpec(
            name=name,
            num_layers=own.layers,
            num_kv_heads=own.kv_heads,
            head_size=own.head_size,
            latent_size=own.latent_size,
        )
        return ModelFacts(spec=spec, num_params=own.params, num_heads=own.heads, source=OWN)
