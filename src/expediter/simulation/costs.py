"""How long one step takes.

A step is one forward pass. Prompt chunks and decodes that share a pass share what it costs to
read the weights and launch the kernels, whatever is computed, so for every model here

    mixed(prefill, decode) = prefill alone + decode alone - what both pay once

Against the mixed passes in the aiconfigurator grids (70 a grid) this is off by 3 to 9 % in the
mean; the plain sum by 5 to 24 %, the larger of the two by 9 to 25 %.

In the formulas n is the new tokens of a chunk, p the tokens before it, B the requests that
decode and S their tokens of context together.
"""

from dataclasses import dataclass
from typing import Protocol

from expediter.scheduling.output import StepWork

MS = 1e-3


class CostModel(Protocol):
    """Seconds a step takes; a pure function of its work."""

    def seconds(self, work: StepWork) -> float:
        """The pass's time; 0 for no work."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """prefill = t n, decode = d + r B: the worked examples' 0.1 ms a token and 20 + 0.2 B ms."""

    prefill_ms_per_token: float = 0.1
    decode_ms: float = 20.0
    decode_ms_per_request: float = 0.2

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`; a prompt alone pays nothing but its tokens, so nothing is shared."""
        total = self.prefill_ms_per_token * work.num_prompt_tokens
        if work.num_decodes:
            total += self.decode_ms + self.decode_ms_per_request * work.num_decodes
        return total * MS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuadraticFit:
    """prefill = a + b n + c (n p + n^2 / 2), decode = a + b B + c S, in ms.

    Attention makes the square: each new token looks at all before it. The fit of prefill holds
    from 256 new tokens on; below, where cached prefixes put one, it is too low (`grid.py`).
    """

    prefill: tuple[float, float, float]
    decode: tuple[float, float, float]

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`."""
        return combined(self._prefill_ms(work), self._decode_ms(work), shared=self._shared_ms) * MS

    @property
    def _shared_ms(self) -> float:
        return min(self.prefill[0], self.decode[0])

    def _prefill_ms(self, work: StepWork) -> float:
        if not work.chunks:
            return 0.0
        a, b, c = self.prefill
        return a + sum(b * n + c * n * (p + n / 2) for n, p in work.chunks)

    def _decode_ms(self, work: StepWork) -> float:
        if not work.num_decodes:
            return 0.0
        a, b, c = self.decode
        return a + b * work.num_decodes + c * work.num_context_tokens


def combined(prefill: float, decode: float, *, shared: float) -> float:
    """The time of a pass from its parts' times alone; 0 means there is no such part."""
    return prefill + decode - shared if prefill and decode else prefill + decode
