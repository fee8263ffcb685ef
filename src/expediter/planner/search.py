"""Placement: which deployment serves the most requests a GPU within the service level.

DistServe's two algorithms (OSDI'24, section 4), and the colocated deployments beside them:

* high node affinity (Algorithm 1): any two workers exchange KV fast enough, so each pool gets the
  instances with the most goodput for its stage alone;
* low node affinity (Algorithm 2): KV has to stay on links within a node, so a prefill and a decode
  instance share nodes;
* colocated: one pool for both stages, with each budget of tokens a step that is asked for.

The goodput of one instance is simulated, pools are sized by arithmetic, and the best deployments
are simulated whole. What cannot win is left out before: instances that do not fit, and those that
miss the service level even for a request that is alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import msgspec

from expediter.config import RoutingConfig
from expediter.errors import ConfigError
from expediter.planner import sizing
from expediter.planner.candidates import Candidate, Candidates
from expediter.planner.deployment import Deployment, Instance
from expediter.planner.goodput import Goodput
from expediter.planner.settings import SearchConfig
from expediter.planner.shapes import Shapes
from expediter.planner.trial import Policy, Stage, Trial, requests, run_trial, traffic_of
from expediter.planner.units import milliseconds
from expediter.simulation.runners import Runner, in_turn
from expediter.simulation.study import BuildPolicy

OnTrial = Callable[[int, int], None]
"""Told how many trials are done, and of how many."""


ROUGH_TOLERANCE = 0.1

Key = TypeVar("Key")
_Key = tuple[Instance, Stage, int]
"""An instance, what it does, and its budget of tokens a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A deployment and what it serves; `goodput` was simulated with all of it at once."""

    candidate: Candidate
    goodput: Goodput

    @property
    def deployment(self) -> Deployment:
        """What to deploy."""
        return self.candidate.deployment

    @property
    def rate_per_gpu(self) -> float:
        """The objective."""
        return self.goodput.rate / self.deployment.num_gpus


class PlacementSearch:
    """Trials for one `SearchConfig`; raises ConfigError for what cannot be."""

    def __init__(self, config: SearchConfig, *, build_policy: BuildPolicy) -> None:
        self._config = config
        shapes = Shapes(
            config=config,
            model=config.own.model(config.model),
            gpu=config.own.gpu(config.gpu),
        )
        self.instances = shapes.feasible()
        self._candidates = Candidates(
            config=config, kv_bytes_per_token=shapes.spec.kv_bytes_per_token
        )
        routing = RoutingConfig(policy=config.policy, block_size=config.block_size)
        self._policy = Policy(build=build_policy, config=routing)
        self._traffic = traffic_of(config)

    def run(self, *, runner: Runner = in_turn, on_trial: OnTrial | None = None) -> list[Found]:
        """The best deployments, by goodput a GPU; none that serves nothing."""
        trials = self._single()
        found = self._run(trials, runner=runner, on_trial=on_trial)
        candidates = self._candidates.whole(
            colocated=_rates(found, Stage.WHOLE),
            prefill=_rates(found, Stage.PREFILL),
            decode={i: rate for (i, _), rate in _rates(found, Stage.DECODE).items()},
        )
        if not candidates:
            raise ConfigError("no deployment meets the service level, whatever the rate")
        return self._finals(candidates, runner=runner, on_trial=on_trial)

    def _single(self) -> dict["_Key", Trial]:
        """Every instance alone, for each stage it can do in time, and for both with each budget."""
        trials: dict[_Key, Trial] = {}
        in_time = {instance: self._is_in_time(instance) for instance in self.instances}
        if not all(map(any, zip(*in_time.values(), strict=True))):
            raise ConfigError(self._too_slow())
        for instance, (can_prefill, can_decode) in in_time.items():
            if can_decode:
                made = self._candidates.decode(instance)
                trials[instance, Stage.DECODE, 0] = self._rough_trial(made, Stage.DECODE)
            for budget in self._config.budgets if can_prefill else ():
                made = self._candidates.prefill(instance, budget=budget)
                trials[instance, Stage.PREFILL, budget] = self._rough_trial(made, Stage.PREFILL)
                if can_decode:
                    made = self._candidates.colocated(instance, budget=budget)
                    trials[instance, Stage.WHOLE, budget] = self._rough_trial(made, Stage.WHOLE)
        return trials

    def _finals(
        self, candidates: Sequence[Candidate], *, runner: Runner, on_trial: OnTrial | None
    ) -> list[Found]:
        """The best candidates, each simulated whole, starting from what was predicted."""
        finalists = {
            candidate: self._trial(candidate.deployment, Stage.WHOLE, start=candidate.predicted / 2)
            for candidate in _best_of_each(candidates, self._config.finalists)
        }
        found = self._run(finalists, runner=runner, on_trial=on_trial)
        results = [Found(candidate=c, goodput=g) for c, g in found.items() if g.rate]
        return sorted(results, key=lambda each: -each.rate_per_gpu)

    def _run(
        self, trials: Mapping[Key, Trial], *, runner: Runner, on_trial: OnTrial | None
    ) -> dict[Key, Goodput]:
        keys = list(trials)
        found: dict[Key, Goodput] = {}
        for place, goodput in runner(run_trial, list(trials.values())):
            found[keys[place]] = goodput
            if on_trial is not None:
                on_trial(len(found), len(keys))
        return {key: found[key] for key in keys}

    def _rough_trial(self, deployment: Deployment, stage: Stage) -> Trial:
        """One sample and a coarse step: enough to know who is worth a closer look."""
        trial = self._trial(deployment, stage)
        traffic = msgspec.structs.replace(trial.traffic, samples=1, tolerance=ROUGH_TOLERANCE)
        return replace(trial, traffic=traffic)

    def _trial(self, deployment: Deployment, stage: Stage, *, start: float = 1.0) -> Trial:
        return Trial(
            deployment=deployment,
            stage=stage,
            traffic=self._traffic,
            policy=self._policy,
            start=start,
        )

    def _is_in_time(self, instance: Instance) -> tuple[bool, bool]:
        """Whether prefill and decode are, for a request of the usual length that is alone."""
        prefill, step = self._floors(instance)
        return prefill <= self._config.ttft, step <= self._config.tpot

    def _floors(self, instance: Instance) -> tuple[float, float]:
        length = self._usual_length
        return (
            sizing.prefill_seconds(instance.cost, new=length),
            sizing.step_seconds(instance.cost, batch=1, context=length),
        )

    @cached_property
    def _usual_length(self) -> int:
        """The length that the share of prompts which must be in time begins with."""
        lengths = sorted(
            turn.num_prompt_tokens for turn in requests(self._traffic, 0, self._config.requests)
        )
        if self._config.prefix_caching:
            return 1  # what is not cached may be as little as that
        return lengths[int((1 - self._config.share) * (len(lengths) - 1))]

    def _too_slow(self) -> str:
        prefill = min(self._floors(instance)[0] for instance in self.instances)
        step = min(self._floors(instance)[1] for instance in self.instances)
        return (
            f"no instance meets the service level for a request that is alone: the fastest prefill "
            f"takes {milliseconds(prefill)} of a ttft of {milliseconds(self._config.ttft)}, the "
            f"fastest step {milliseconds(step)} of a tpot of {milliseconds(self._config.tpot)}"
        )


def _rates(found: Mapping[_Key, Goodput], wanted: Stage) -> dict[tuple[Instance, int], float]:
    return {(i, budget): g.rate for (i, stage, budget), g in found.items() if stage is wanted}


def _best_of_each(candidates: Sequence[Candidate], num: int) -> list[Candidate]:
    """The best `num`, half of them colocated and half split where there are so many of both."""
    split = [each for each in candidates if each.deployment.decode is not None]
    whole = [each for each in candidates if each.deployment.decode is None]
    num_split = min(len(split), max(num // 2, num - len(whole)))
    return whole[: num - num_split] + split[:num_split]


def pareto(found: Sequence[Found]) -> list[Found]:
    """Those that nobody beats in goodput with as few GPUs, fewest GPUs first."""
    front: list[Found] = []
    for each in sorted(found, key=lambda f: (f.deployment.num_gpus, -f.goodput.rate)):
        if not front or each.goodput.rate > front[-1].goodput.rate:
            front.append(each)
    return front
