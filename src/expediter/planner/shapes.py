"""Which instances there can be: how a model is cut, if it fits, and how fast and large it is then.

Tensor parallelism needs a divisor of the attention heads and stays within a node; pipeline stages
need a divisor of the layers. Weights are spread over all GPUs of an instance, and what is left of
the memory is KV cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from expediter.errors import ConfigError
from expediter.model_spec import DTYPE_BYTES, ModelSpec
from expediter.planner import sizing
from expediter.planner.deployment import Instance
from expediter.planner.settings import SearchConfig
from expediter.planner.units import big, size
from expediter.simulation.catalog import cost_names, named_cost
from expediter.simulation.costs import CostModel
from expediter.simulation.roofline import Gpu, ModelFacts, Roofline

TP = "{tp}"
"""In the name of a cost model it stands for the tensor-parallel size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Instances of one model on one kind of GPU."""

    config: SearchConfig
    model: ModelFacts
    gpu: Gpu

    def feasible(self) -> list[Instance]:
        """Smallest first. Raises ConfigError if none has room for weights and a request."""
        config = self.config
        found = [
            instance
            for tp in _divisors(self.model.num_heads, at_most=config.gpus_per_node)
            for pp in _divisors(self.model.spec.num_layers, at_most=config.gpus // tp)
            if (instance := self._instance(tp, pp)) is not None
        ]
        if not found:
            raise ConfigError(self._nothing_fits())
        return sorted(found, key=lambda each: (each.num_gpus, each.pp))

    @property
    def spec(self) -> ModelSpec:
        """The model's KV, in the type it is kept in."""
        return replace(self.model.spec, dtype=self.config.kv_dtype)

    def memory(self, num_gpus: int) -> sizing.Memory:
        """Of an instance."""
        return sizing.replica_memory(
            self.gpu,
            num_gpus=num_gpus,
            weight_bytes=self.model.num_params * DTYPE_BYTES[self.config.weight_dtype],
            share=self.config.memory_share,
        )

    def _instance(self, tp: int, pp: int) -> Instance | None:
        cost = self._cost(tp)
        num_tokens = self.memory(tp * pp).kv_tokens(self.spec.kv_bytes_per_token)
        if cost is None or num_tokens // pp < self.config.min_context:
            return None
        return Instance(tp=tp, pp=pp, cost=cost, kv_tokens=num_tokens)

    def _cost(self, tp: int) -> CostModel | None:
        """None if nobody measured this size."""
        template = self.config.cost
        if template is None:
            return Roofline(model=self.model, gpu=self.gpu, num_gpus=tp)
        name = template.replace(TP, str(tp))
        if TP not in template or name in cost_names() or "." in name:
            return named_cost(name) if tp == 1 or TP in template else None
        return None

    def _nothing_fits(self) -> str:
        config = self.config
        memory = self.memory(config.gpus)
        what = (
            f"no way to cut {config.model} fits on {config.gpus} x {self.gpu.name}: its weights "
            f"take {size(memory.weight_bytes)} of the {size(memory.usable_bytes)} there are"
        )
        if memory.kv_bytes > 0:
            room = big(memory.kv_tokens(self.spec.kv_bytes_per_token))
            what += (
                f", and {room} tokens of KV are left; a context of {big(config.min_context)} is "
                f"asked for, with a cost model for that tensor-parallel size"
            )
        return what


def _divisors(number: int, *, at_most: int) -> Iterator[int]:
    return (n for n in range(1, min(number, at_most) + 1) if number % n == 0)
