"""Step times from first principles, for models and GPUs nobody measured.

A pass takes as long as its arithmetic or its memory traffic, whichever is longer: weights are
read once, and each request's KV once. Links between the GPUs of a tensor-parallel group are
left out, and real kernels reach only part of the datasheet: the default shares are those of
the 70B model on 8 H100 in `grid.py` (prefill at 2,048 tokens, decode at batch 1), so other
combinations are extrapolations.
"""

from dataclasses import dataclass

from expediter.model_spec import DTYPE_BYTES, ModelSpec
from expediter.scheduling.output import StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU by its datasheet: dense 16-bit FLOP/s, bytes/s of memory, bytes of memory.

    `source` is who says so.
    """

    name: str
    flops: float
    memory_bandwidth: float
    memory_bytes: float
    source: str = ""


_DATASHEETS = {
    "a100": (312e12, 2.039e12, 80e9, "NVIDIA A100 datasheet, SXM 80 GB"),
    "h100": (989e12, 3.35e12, 80e9, "NVIDIA H100 product page, SXM"),
    "h200": (989e12, 4.8e12, 141e9, "NVIDIA H200 product page, SXM"),
    "b200": (2250e12, 8.0e12, 180e9, "NVIDIA B200 datasheet, HGX"),
    "mi300x": (1307e12, 5.3e12, 192e9, "AMD MI300X datasheet"),
    "l40s": (362e12, 0.864e12, 48e9, "NVIDIA L40S datasheet"),
    "l4": (121e12, 0.3e12, 24e9, "NVIDIA L4 datasheet"),
    "a10": (125e12, 0.6e12, 24e9, "NVIDIA A10 datasheet"),
    "a6000": (155e12, 0.768e12, 48e9, "NVIDIA RTX A6000 datasheet"),
}
GPUS = {
    name: Gpu(name=name, flops=flops, memory_bandwidth=bandwidth, memory_bytes=size, source=source)
    for name, (flops, bandwidth, size, source) in _DATASHEETS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A dense decoder: its KV shape, its parameters, its attention heads."""

    spec: ModelSpec
    num_params: float
    num_heads: int
    source: str = "its config.json and model card"

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights, in the KV cache's dtype."""
        return self.num_params * DTYPE_BYTES[self.spec.dtype]


MODELS = {
    "llama3-8b": ModelFacts(
        spec=ModelSpec(name="llama3-8b", num_layers=32, num_kv_heads=8, head_size=128),
        num_params=8.03e9,
        num_heads=32,
    ),
    "llama2-13b": ModelFacts(
        spec=ModelSpec(name="llama2-13b", num_layers=40, num_kv_heads=40, head_size=128),
        num_params=13.02e9,
        num_heads=40,
    ),
    "llama3-70b": ModelFacts(
        spec=ModelSpec(name="llama3-70b", num_layers=80, num_kv_heads=8, head_size=128),
        num_params=70.6e9,
        num_heads=64,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """max(FLOPs / (G F e_c), bytes / (G W e_m)) over G GPUs in a tensor-parallel group.

    FLOPs: 2 a parameter and token, 4 a head, head element, layer and pair of tokens.
    Bytes: the weights, and the KV of every token attended to.
    """

    model: ModelFacts
    gpu: Gpu
    num_gpus: int = 1
    compute_efficiency: float = 0.42
    memory_efficiency: float = 0.57

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`; chunks and decodes share the weights by construction."""
        num_tokens = work.num_prompt_tokens + work.num_decodes
        if num_tokens == 0:
            return 0.0
        pairs = work.num_context_tokens + sum(n * (p + n / 2) for n, p in work.chunks)
        read = work.num_context_tokens + sum(n + p for n, p in work.chunks)
        spec = self.model.spec
        attention = 4 * self.model.num_heads * spec.head_size * spec.num_layers * pairs
        flops = 2 * self.model.num_params * num_tokens + attention
        num_bytes = self.model.weight_bytes + read * spec.kv_bytes_per_token
        return max(
            flops / (self.num_gpus * self.gpu.flops * self.compute_efficiency),
            num_bytes / (self.num_gpus * self.gpu.memory_bandwidth * self.memory_efficiency),
        )


def kv_capacity_tokens(
    model: ModelFacts, gpu: Gpu, *, num_gpus: int, memory_share: float = 0.9
) -> int:
    """Tokens of KV that fit beside the weights in `memory_share` of the GPUs' memory."""
    free = num_gpus * gpu.memory_bytes * memory_share - model.weight_bytes
    return max(0, int(free // model.spec.kv_bytes_per_token))
