"""Deployments that fill so many GPUs, from what one instance of each shape serves alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from expediter.config import SchedulerConfig
from expediter.planner.deployment import Deployment, Instance, Pool
from expediter.planner.settings import SearchConfig

Rates = Mapping[tuple[Instance, int], float]
"""The goodput of one instance, by its budget of tokens a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A deployment, how its KV moves, and the goodput that its instances' add up to."""

    deployment: Deployment
    kind: str
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What can be built from instances within the limits of `config`."""

    config: SearchConfig
    kv_bytes_per_token: int

    def prefill(self, instance: Instance, *, budget: int) -> Deployment:
        """One instance that only prefills, whole prompts that are `budget` tokens together.

        A longer prompt is a pass of its own. (L_m of DistServe, section 3.1: enough to keep the
        GPU busy, and no more, since larger passes only add to the wait.)
        """
        return self._deployment(self._pool(instance, 1, budget=budget, chunked=False))

    def decode(self, instance: Instance) -> Deployment:
        """One instance that only decodes."""
        return self._deployment(self._pool(instance, 1))

    def colocated(self, instance: Instance, *, budget: int, num_instances: int = 1) -> Deployment:
        """Instances that do both, chunked to `budget` tokens a step."""
        return self._deployment(self._pool(instance, num_instances, budget=budget))

    def whole(
        self,
        *,
        colocated: Rates,
        prefill: Rates,
        decode: Mapping[Instance, float],
    ) -> list[Candidate]:
        """Every deployment on the GPUs there are, the best first."""
        found = [*self._all_colocated(colocated), *self._all_split(prefill, decode)]
        return sorted(found, key=lambda each: (-each.predicted, each.deployment.num_gpus))

    def _all_colocated(self, rates: Rates) -> Iterator[Candidate]:
        for (instance, budget), rate in rates.items():
            num = self.config.gpus // instance.num_gpus
            if rate and num:
                deployment = self.colocated(instance, budget=budget, num_instances=num)
                kind = f"colocated, {budget} tokens a step"
                yield Candidate(deployment=deployment, kind=kind, predicted=num * rate)

    def _all_split(self, prefill: Rates, decode: Mapping[Instance, float]) -> Iterator[Candidate]:
        best: dict[Instance, tuple[float, int]] = {}
        for (instance, budget), rate in prefill.items():
            best[instance] = max(best.get(instance, (0.0, 0)), (rate, budget))
        for (first, (prefill_rate, budget)), (second, decode_rate) in product(
            best.items(), decode.items()
        ):
            if prefill_rate and decode_rate:
                pair = _Pair(first, second, budget, prefill_rate, decode_rate)
                yield from self._high_affinity(pair)
                yield from self._low_affinity(pair)

    def _high_affinity(self, pair: "_Pair") -> Iterator[Candidate]:
        """As many of each as make min(n p, m d) largest, and no more."""
        best = 0.0, 0, 0
        for num in range(1, self.config.gpus // pair.first.num_gpus + 1):
            more = (self.config.gpus - num * pair.first.num_gpus) // pair.second.num_gpus
            if more:
                best = max(best, (pair.rate(num, more), num, more))
        rate, num, more = best
        if rate:
            is_one_node = self.config.gpus <= self.config.gpus_per_node
            link = self.config.within_node if is_one_node else self.config.across_nodes
            split = self._split(pair, nums=(num, more), link=link)
            yield Candidate(deployment=split, kind="two pools", predicted=rate)

    def _low_affinity(self, pair: "_Pair") -> Iterator[Candidate]:
        """Pairs whose pipeline stages stand on the same nodes, so that KV stays within them."""
        per_node = pair.first.tp + pair.second.tp
        if pair.first.pp != pair.second.pp or per_node > self.config.gpus_per_node:
            return
        num = self.config.gpus // (per_node * pair.first.pp)
        if num and self.config.gpus > self.config.gpus_per_node:
            split = self._split(pair, nums=(num, num), link=self.config.within_node)
            kind = "pairs within nodes"
            yield Candidate(deployment=split, kind=kind, predicted=pair.rate(num, num))

    def _split(self, pair: "_Pair", *, nums: tuple[int, int], link: str) -> Deployment:
        """Every GPU of the smaller side has a link of its own."""
        num_links = min(pair.first.num_gpus, pair.second.num_gpus)
        speed = num_links * self.config.own.link(link).bytes_per_second
        prefill = self._pool(pair.first, nums[0], budget=pair.budget, chunked=False)
        return replace(
            self._deployment(prefill),
            decode=self._pool(pair.second, nums[1]),
            transfer_seconds=self.kv_bytes_per_token / speed,
        )

    def _deployment(self, pool: Pool) -> Deployment:
        return Deployment(prefill=pool, block_size=self.config.block_size)

    def _pool(
        self, instance: Instance, num: int, *, budget: int = 8192, chunked: bool = True
    ) -> Pool:
        return Pool(
            instance=instance,
            num_instances=num,
            scheduler=SchedulerConfig(
                max_batched_tokens=budget,
                max_running=self.config.max_running,
                chunked_prefill=chunked,
            ),
            prefix_caching=self.config.prefix_caching,
        )


class _Pair(NamedTuple):
    """What may prefill and what may decode, and what one of each serves."""

    first: Instance
    second: Instance
    budget: int
    prefill_rate: float
    decode_rate: float

    def rate(self, num_first: int, num_second: int) -> float:
        """The slower stage's."""
        return min(num_first * self.prefill_rate, num_second * self.decode_rate)
