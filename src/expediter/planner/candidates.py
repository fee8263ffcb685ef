"""Deployments that fill so many GPUs, from what one instance of each shape serves alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from expediter.config import SchedulerConfig
from expediter.planner.deployment import Deployment, Instance, Pool
from expediter.planner.links import named_link
from expediter.planner.settings import SearchConfig

Rates = Mapping[Instance, float]
"""The goodput of one instance."""

PREFILL_BATCH = 512
"""Tokens up to which prompts are computed together: larger passes only add to the wait (L_m of
DistServe, section 3.1, for 13B on an A100); a longer prompt is a pass of its own."""


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

    def prefill(self, instance: Instance) -> Deployment:
        """One instance that only prefills, as few prompts at once as keep it busy."""
        return self._deployment(self._pool(instance, 1, budget=PREFILL_BATCH, chunked=False))

    def decode(self, instance: Instance) -> Deployment:
        """One instance that only decodes."""
        return self._deployment(self._pool(instance, 1))

    def colocated(self, instance: Instance, *, budget: int, num_instances: int = 1) -> Deployment:
        """Instances that do both, chunked to `budget` tokens a step."""
        return self._deployment(self._pool(instance, num_instances, budget=budget))

    def whole(
        self,
        *,
        colocated: Mapping[tuple[Instance, int], float],
        prefill: Rates,
        decode: Rates,
    ) -> list[Candidate]:
        """Every deployment on the GPUs there are, the best first."""
        found = [*self._all_colocated(colocated), *self._all_split(prefill, decode)]
        return sorted(found, key=lambda each: (-each.predicted, each.deployment.num_gpus))

    def _all_colocated(self, rates: Mapping[tuple[Instance, int], float]) -> Iterator[Candidate]:
        for (instance, budget), rate in rates.items():
            num = self.config.gpus // instance.num_gpus
            if rate and num:
                deployment = self.colocated(instance, budget=budget, num_instances=num)
                kind = f"colocated, {budget} tokens a step"
                yield Candidate(deployment=deployment, kind=kind, predicted=num * rate)

    def _all_split(self, prefill: Rates, decode: Rates) -> Iterator[Candidate]:
        for first, second in product(prefill, decode):
            if prefill[first] and decode[second]:
                yield from self._high_affinity(first, second, prefill[first], decode[second])
                yield from self._low_affinity(first, second, prefill[first], decode[second])

    def _high_affinity(
        self, first: Instance, second: Instance, prefill_rate: float, decode_rate: float
    ) -> Iterator[Candidate]:
        """As many of each as make min(n p, m d) largest, and no more."""
        best = 0.0, 0, 0
        for num in range(1, self.config.gpus // first.num_gpus + 1):
            more = (self.config.gpus - num * first.num_gpus) // second.num_gpus
            if more:
                best = max(best, (min(num * prefill_rate, more * decode_rate), num, more))
        rate, num, more = best
        if rate:
            is_one_node = self.config.gpus <= self.config.gpus_per_node
            link = self.config.within_node if is_one_node else self.config.across_nodes
            split = self._split(first, second, nums=(num, more), link=link)
            yield Candidate(deployment=split, kind="two pools", predicted=rate)

    def _low_affinity(
        self, first: Instance, second: Instance, prefill_rate: float, decode_rate: float
    ) -> Iterator[Candidate]:
        """Pairs whose pipeline stages stand on the same nodes, so that KV stays within them."""
        per_node = first.tp + second.tp
        if first.pp != second.pp or per_node > self.config.gpus_per_node:
            return
        num = self.config.gpus // (per_node * first.pp)
        if num and self.config.gpus > self.config.gpus_per_node:
            link = self.config.within_node
            split = self._split(first, second, nums=(num, num), link=link)
            rate = num * min(prefill_rate, decode_rate)
            yield Candidate(deployment=split, kind="pairs within nodes", predicted=rate)

    def _split(
        self, first: Instance, second: Instance, *, nums: tuple[int, int], link: str
    ) -> Deployment:
        """Every GPU of the smaller side has a link of its own."""
        num_links = min(first.num_gpus, second.num_gpus)
        seconds = self.kv_bytes_per_token / (num_links * named_link(link).bytes_per_second)
        pool = self._pool(first, nums[0], budget=PREFILL_BATCH, chunked=False)
        deployment = self._deployment(pool)
        return replace(deployment, decode=self._pool(second, nums[1]), transfer_seconds=seconds)

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
