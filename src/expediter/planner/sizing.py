"""Fleet arithmetic in closed form: what fits, what hits, how many, and what moves.

No queues: means only, so a fleet of this size is the least that can keep up. What waits in it,
and what share of requests meets its SLO, takes a simulation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from expediter.planner.links import Link
from expediter.scheduling.output import PromptChunk, StepWork
from expediter.simulation.costs import CostModel
from expediter.simulation.roofline import Gpu

MAX_BATCH = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """`rate` requests/s of `shared` + `history` + `new` prompt tokens and `output` tokens each.

    `shared` is the same in all requests, `history` the same within a conversation.
    """

    rate: float
    shared: int = 0
    history: int = 0
    new: int
    output: int

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of one prompt."""
        return self.shared + self.history + self.new

    def cached_tokens(self, *, num_replicas: int) -> float:
        """Expected hit where `num_replicas` may each get a conversation's next turn.

        The shared part is on all of them, the history on the one that had the last turn. 1 is
        cache-aware routing, the size of the fleet random routing.
        """
        return self.shared + self.history / num_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the GPUs of one replica: what there is, and what the weights take."""

    total_bytes: float
    usable_bytes: float  # without what activations and the runtime need
    weight_bytes: float

    @property
    def kv_bytes(self) -> float:
        """What is left for the KV cache; negative if not even the weights fit."""
        return self.usable_bytes - self.weight_bytes

    def kv_tokens(self, kv_bytes_per_token: int) -> int:
        """Tokens of KV that fit."""
        return max(0, int(self.kv_bytes // kv_bytes_per_token))


def replica_memory(gpu: Gpu, *, num_gpus: int, weight_bytes: float, share: float) -> Memory:
    """`share` of the GPUs' memory may be used."""
    total = num_gpus * gpu.memory_bytes
    return Memory(total_bytes=total, usable_bytes=share * total, weight_bytes=weight_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prefill work of a traffic when `cached` tokens of each prompt are found."""

    cached_tokens: float
    hit_rate: float
    tokens_per_second: float  # to be computed, over the fleet
    mean_seconds: float  # of one request, alone on a replica
    num_replicas: float  # that this keeps busy; round up to get replicas


def prefill_work(traffic: Traffic, cost: CostModel, *, cached: float) -> Prefill:
    """Little's law for the prefill stage: rate x time is how many replicas are busy."""
    computed = traffic.num_prompt_tokens - cached
    seconds = prefill_seconds(cost, new=round(computed), cached=round(cached))
    return Prefill(
        cached_tokens=cached,
        hit_rate=cached / traffic.num_prompt_tokens,
        tokens_per_second=traffic.rate * computed,
        mean_seconds=seconds,
        num_replicas=traffic.rate * seconds,
    )


def prefill_seconds(cost: CostModel, *, new: int, cached: int = 0) -> float:
    """One prompt alone, in one pass."""
    return cost.seconds(StepWork(chunks=(PromptChunk(new, cached),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Decode stage at a TPOT target; `max_batch` of a replica is 0 if none can meet it."""

    concurrency: float  # requests that decode at once, over the fleet
    max_batch: int
    floor_seconds: float  # TPOT of a request that decodes alone

    @property
    def num_replicas(self) -> float:
        """Replicas that the concurrency keeps full; infinite if none can meet the target."""
        return self.concurrency / self.max_batch if self.max_batch else math.inf


def decode_work(traffic: Traffic, cost: CostModel, *, tpot: float, kv_tokens: int | None) -> Decode:
    """Little's law: rate x (output x TPOT) decode at once; a replica takes its largest batch.

    The batch is the largest that steps within `tpot` seconds and whose KV fits in `kv_tokens`.
    """
    context = traffic.num_prompt_tokens + traffic.output // 2
    fits = MAX_BATCH if kv_tokens is None else kv_tokens // (context or 1)
    return Decode(
        concurrency=traffic.rate * traffic.output * tpot,
        max_batch=_largest_batch(cost, tpot=tpot, context=context, limit=min(fits, MAX_BATCH)),
        floor_seconds=step_seconds(cost, batch=1, context=context),
    )


def step_seconds(cost: CostModel, *, batch: int, context: int) -> float:
    """One decode step of `batch` requests with `context` tokens each."""
    return cost.seconds(StepWork(num_decodes=batch, num_context_tokens=batch * context))


def _largest_batch(cost: CostModel, *, tpot: float, context: int, limit: int) -> int:
    """By bisection; a step takes longer the more it decodes."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        # A hair of tolerance: 20 + 0.2 x 100 ms is 40 ms, whatever binary fractions say.
        if step_seconds(cost, batch=middle, context=context) <= tpot * (1 + 1e-9):
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A prompt's KV over links: `seconds` is bytes / (links x speed) + latency."""

    num_bytes: int
    num_links: int
    seconds: float

    @property
    def bytes_per_link(self) -> float:
        """What each of the parallel links carries."""
        return self.num_bytes / self.num_links


def transfer(num_bytes: int, link: Link, *, num_links: int) -> Transfer:
    """All links in parallel, each with an equal part: a GPU sends the heads it has."""
    seconds = num_bytes / (num_links * link.bytes_per_second) + link.latency_seconds
    return Transfer(num_bytes=num_bytes, num_links=num_links, seconds=seconds)


def pools_goodput(gpus: Sequence[int], rates: Sequence[float]) -> float:
    """Requests/s of stages with so many GPUs, of which each serves so many requests/s.

    The slowest stage decides: min(P x p, D x d) (DistServe, section 1).
    """
    return min(num * rate for num, rate in zip(gpus, rates, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Loading cached KV from a slower tier against computing it again."""

    load_seconds: float
    recompute_seconds: float
    break_even_bytes_per_second: float  # a link must be faster than that for loading to pay

    @property
    def pays(self) -> bool:
        """Whether loading is the faster of the two."""
        return self.load_seconds < self.recompute_seconds


def reuse(cost: CostModel, link: Link, *, num_tokens: int, num_bytes: int, num_links: int) -> Reuse:
    """For a prefix of `num_tokens` whose KV is `num_bytes`."""
    recompute = prefill_seconds(cost, new=num_tokens)
    return Reuse(
        load_seconds=transfer(num_bytes, link, num_links=num_links).seconds,
        recompute_seconds=recompute,
        break_even_bytes_per_second=num_bytes / recompute if recompute else math.inf,
    )
