"""Prefill and decode in pools of their own: DistServe's comparison.

The pools are simulated one after the other, as DistServe's placement does: a request decodes when
its prefill is over and its KV has arrived. *Gains*: the highest rate a GPU with 90 % in time, for
the placements of DistServe's appendix B with its engine's coefficients, over one vLLM instance with
vLLM's; at its evaluation's service levels. What links cost, with both pools at work at once, is in
`four_policies`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

from expediter.config import SchedulerConfig
from expediter.planner.deployment import Deployment, Instance, Outcome, Pool, serve
from expediter.planner.goodput import Goodput, Search, Target, attainment
from expediter.simulation.catalog import named_cost
from expediter.workload.arrivals import poisson
from expediter.workload.distserve import HUMANEVAL, LONGBENCH, SHAREGPT
from expediter.workload.shared_prefix import SharedPrefix
from expediter.workload.streams import faster
from expediter.workload.turn import Turn
from experiments.running import Row, Table

WHOLE = SchedulerConfig(max_batched_tokens=2048, max_running=256, chunked_prefill=False)
SMALL_CHUNKS = SchedulerConfig(max_batched_tokens=512, max_running=256)
# KV tokens by model and shape, from DistServe's max_num_tokens.csv.
KV_TOKENS = {
    ("opt-13b", 1, 1): 66_144,
    ("opt-13b", 2, 1): 163_008,
    ("opt-66b", 4, 1): 78_496,
    ("opt-66b", 2, 2): 78_512,
}
TABLE_2 = {1.0: 100, 1.5: 100, 2.0: 99.3, 2.5: 88.3, 3.0: 84.1, 3.5: 77.0, 4.0: 68.9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the evaluation; placements are (TP, PP) for prefill, decode, and the baseline."""

    model: str
    requests: SharedPrefix
    target: Target
    prefill: tuple[int, int]
    decode: tuple[int, int]
    baseline: int
    theirs: str


EVALUATION = (
    Setting(
        model="opt-13b",
        requests=SHAREGPT,
        target=Target(ttft=0.25, tpot=0.1),
        prefill=(2, 1),
        decode=(1, 1),
        baseline=1,
        theirs="2.0 to 4.6",
    ),
    Setting(
        model="opt-66b",
        requests=SHAREGPT,
        target=Target(ttft=2.5, tpot=0.15),
        prefill=(4, 1),
        decode=(2, 2),
        baseline=4,
        theirs="2.0 to 4.6",
    ),
    Setting(
        model="opt-66b",
        requests=HUMANEVAL,
        target=Target(ttft=0.125, tpot=0.2),
        prefill=(4, 1),
        decode=(2, 2),
        baseline=4,
        theirs="5.7",
    ),
    Setting(
        model="opt-66b",
        requests=LONGBENCH,
        target=Target(ttft=15.0, tpot=0.15),
        prefill=(4, 1),
        decode=(2, 2),
        baseline=4,
        theirs="4.3",
    ),
)


def run(*, quick: bool) -> list[Table]:
    """Two tables."""
    return [_gains(quick=quick), _attained(quick=quick)]


def _gains(*, quick: bool) -> Table:
    rows: list[Row] = []
    for setting in EVALUATION[:1] if quick else EVALUATION:
        find = partial(_goodput, setting, quick=quick)
        apart = find(split(setting))
        rates = [
            find(_one(setting, scheduler)) / setting.baseline for scheduler in (WHOLE, SMALL_CHUNKS)
        ]
        num_gpus = split(setting).num_gpus
        gains = [round(apart / num_gpus / rate, 2) if rate else "-" for rate in rates]
        name = f"{setting.model}, {setting.requests.name}"
        rows.append((name, round(apart / num_gpus, 2), *_rounded(rates), *gains, setting.theirs))
    columns = (
        "model, requests",
        "two pools/s a GPU",
        "one pool",
        "one pool, chunks of 512",
        "gain",
        "gain over chunks",
        "paper, over vLLM",
    )
    return Table(title="Highest rate a GPU, 90 % in time", columns=columns, rows=rows)


def _rounded(rates: Sequence[float]) -> list[float]:
    return [round(rate, 2) for rate in rates]


def split(setting: Setting) -> Deployment:
    """The paper's placement, one instance of each kind; KV stays on NVLink."""
    return Deployment(
        prefill=_pool(setting.model, setting.prefill, WHOLE),
        decode=_pool(setting.model, setting.decode, WHOLE),
        block_size=64,
    )


def _one(setting: Setting, scheduler: SchedulerConfig) -> Deployment:
    pool = _pool(setting.model, (setting.baseline, 1), scheduler, engine="vllm")
    return Deployment(prefill=pool, block_size=64)


def _pool(
    model: str, shape: tuple[int, int], scheduler: SchedulerConfig, *, engine: str = "distserve"
) -> Pool:
    tp, pp = shape
    instance = Instance(
        tp=tp,
        pp=pp,
        cost=named_cost(f"{model}-tp{tp}-{engine}"),
        kv_tokens=KV_TOKENS[model, tp, pp],
    )
    return Pool(instance=instance, num_instances=1, scheduler=scheduler, prefix_caching=False)


def _goodput(setting: Setting, deployment: Deployment, *, quick: bool) -> float:
    search = Search(tolerance=0.2 if quick else 0.03, num_samples=1 if quick else 3)
    num = 100 if quick else 1000

    def attempt(rate: float, sample: int) -> Sequence[Outcome]:
        return serve(deployment, _requests(setting.requests, rate, num, sample), seed=sample)

    found: Goodput = search.goodput(attempt, setting.target)
    return found.rate


def _requests(made: SharedPrefix, rate: float, num: int, sample: int) -> list[Turn]:
    return list(faster(rate, _sample(made.name, num, sample)))


@lru_cache(maxsize=16)
def _sample(name: str, num: int, sample: int) -> list[Turn]:
    made = next(each for each in (SHAREGPT, HUMANEVAL, LONGBENCH) if each.name == name)
    rng = random.Random(f"sample {sample}")
    return list(islice(made.turns(poisson(1.0).times(rng), rng=rng), num))


def _attained(*, quick: bool) -> Table:
    """DistServe's side of its Table 2; rates are of the whole, 8 GPUs."""
    setting = EVALUATION[1]
    rows: list[Row] = []
    for rate, theirs in list(TABLE_2.items())[: 2 if quick else None]:
        turns = _requests(setting.requests, rate, 150 if quick else 1000, 0)
        found = attainment(serve(split(setting), turns), setting.target)
        rows.append((rate, round(100 * found.ttft, 1), round(100 * found.tpot, 1), theirs))
    columns = ("rate/s", "TTFT in time %", "TPOT in time %", "paper's simulator, both %")
    return Table(title="OPT-66B, ShareGPT, two pools (2.5 s, 0.15 s)", columns=columns, rows=rows)
