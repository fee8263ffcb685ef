"""How a model is split over ranks: processes that each run a part of every layer.

A rank has some of the KV heads and the query heads that share them, and some of the MLP's inner
dimensions: rows of the matrices that make them, columns of the matrices that use them. What
the columns give are parts of a sum, so a layer needs two sums over ranks, one after attention and
one after the MLP. Of the vocabulary's matrix a rank has some rows, so its logits are some of all.
"""

from dataclasses import dataclass, replace

from expediter.engine.architecture import ModelConfig
from expediter.engine.int4 import GROUP
from expediter.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which part of the model is meant: that of `rank`, of `size`."""

    rank: int = 0
    size: int = 1

    def part(self, length: int, *, unit: int = 1) -> range:
        """Ours of `length` things in whole units, the ranks' shares as even as can be."""
        units = length // unit
        start, stop = (rank * units // self.size for rank in (self.rank, self.rank + 1))
        return range(start * unit, stop * unit)

    def inner(self, config: ModelConfig) -> range:
        """Our part of the MLP's inner dimensions."""
        length = config.intermediate_size
        # Four-bit codes share a scale in groups; a group is not cut if it need not be.
        is_grouped = length % GROUP == 0 and length >= GROUP * self.size
        return self.part(length, unit=GROUP if is_grouped else 1)

    def vocabulary(self, config: ModelConfig) -> range:
        """Our rows of the vocabulary's matrix: equally many at each rank, the last ones padding."""
        num_rows = -(-config.vocab_size // self.size)
        return range(self.rank * num_rows, (self.rank + 1) * num_rows)

    def config(self, config: ModelConfig) -> ModelConfig:
        """The model as one rank runs it."""
        return replace(
            config,
            num_heads=config.num_heads // self.size,
            num_kv_heads=config.num_kv_heads // self.size,
            intermediate_size=len(self.inner(config)),
        )


WHOLE = Shard()


def check_size(config: ModelConfig, size: int) -> None:
    """Raises ConfigError, with the sizes that can be, unless the KV heads can be split so."""
    heads = config.num_kv_heads
    if heads % size:
        allowed = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ConfigError(
            f"engine.tensor-parallel is {size}; the {heads} KV heads of {config.name} can be "
            f"split over {allowed}"
        )
