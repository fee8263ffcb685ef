"""DistServe (OSDI'24): what one pool can do. (Two are in `two_pools`.)

*13B*: one A100, 512 tokens in and 64 out, 90 % of the requests in time. *Prefill only* ends with
the first token; *decode only* has prompts that cost nothing, and may wait 0.1 s for a place. The
paper draws its service level without saying it; here it is Table 1's for the 13B model, 0.25 s
and 0.1 s. *66B*: its Table 2, one vLLM instance on four A100, with lengths made up to have about
ShareGPT's means, because the samples are not published.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from random import Random

from expediter.config import SchedulerConfig
from expediter.scheduling.output import StepWork
from expediter.simulation.costs import CostModel
from expediter.simulation.published import DISTSERVE
from expediter.simulation.report import Objective
from expediter.workload.arrivals import poisson
from expediter.workload.distributions import Constant
from expediter.workload.distserve import SHAREGPT
from expediter.workload.shared_prefix import SharedPrefix
from expediter.workload.turn import Turn
from experiments.running import Case, Make, Row, Table, fleet, overall, run_all

SERVICE_LEVEL = Objective(ttft=0.25, tpot=0.1)
ATTAINED = 0.9
TABLE_2 = {1.0: 96.8, 1.5: 65.1, 2.0: 51.0, 2.5: 46.1, 3.0: 38.3, 3.5: 29.0, 4.0: 24.1}
LEVELS = {
    "2.5 s / 0.15 s": Objective(ttft=2.5, tpot=0.15),
    "0.4 s / 0.1 s": Objective(ttft=0.4, tpot=0.1),
}
NO_CHUNKS = SchedulerConfig(max_batched_tokens=2048, max_running=256, chunked_prefill=False)


@dataclass(frozen=True, slots=True)
class DecodeOnly:
    """A worker to which prompts come computed."""

    cost: CostModel

    def seconds(self, work: StepWork) -> float:
        """The decodes' time; next to nothing for prompts, because time must pass."""
        alone = StepWork(
            num_decodes=work.num_decodes, num_context_tokens=work.num_context_tokens, chunks=[]
        )
        return self.cost.seconds(alone) or 1e-6


@lru_cache(maxsize=2)
def fixed(rate: float, num_requests: int, num_output: int) -> list[Turn]:
    made = SharedPrefix(
        name="fixed", levels=(), question_tokens=Constant(512), answer_tokens=Constant(num_output)
    )
    rng = Random(1)
    return list(islice(made.turns(poisson(rate).times(rng), rng=rng), num_requests))


@lru_cache(maxsize=2)
def sharegpt(rate: float, num_requests: int) -> list[Turn]:
    rng = Random(1)
    return list(islice(SHAREGPT.turns(poisson(rate).times(rng), rng=rng), num_requests))


def run(*, quick: bool) -> list[Table]:
    """Two tables."""
    return [_one_gpu(200 if quick else 1000), _table_2(quick=quick)]


def _one_gpu(num_requests: int) -> Table:
    engines = {
        "vLLM": DISTSERVE["opt-13b-tp1-vllm"],
        "DistServe": DISTSERVE["opt-13b-tp1-distserve"],
    }
    parts = {
        "colocated": (64, False, SERVICE_LEVEL, "1.6"),
        "prefill only": (1, False, Objective(ttft=0.25), "5.6"),
        "decode only": (64, True, Objective(ttft=0.1, tpot=0.1), "10"),
    }
    rows: list[Row] = []
    for engine, cost in engines.items():
        for part, (num_output, is_decode, level, theirs) in parts.items():
            used: CostModel = DecodeOnly(cost) if is_decode else cost

            def attained(
                rate: float,
                num_output: int = num_output,
                used: CostModel = used,
                level: Objective = level,
            ) -> float:
                return _attained(Make(fixed, rate, num_requests, num_output), used, level)

            rows.append((engine, part, round(highest(attained), 2), theirs))
    columns = ("coefficients", "part", "requests/s a GPU", "paper")
    return Table(
        title="OPT-13B on one A100, 512 in, 64 out, 90 % in time", columns=columns, rows=rows
    )


def highest(attained: Callable[[float], float], *, low: float = 0.1, high: float = 60.0) -> float:
    """The highest rate with enough requests in time, to 2 %."""
    while high / low > 1.02:
        middle = (high * low) ** 0.5
        if attained(middle) >= ATTAINED:
            low = middle
        else:
            high = middle
    return low


def _attained(turns: Make[list[Turn]], cost: CostModel, level: Objective) -> float:
    model = fleet(
        "round-robin",
        block_size=16,
        cost=cost,
        worker={"num": 1, "kv_tokens": 66_144},
        scheduler=NO_CHUNKS,
    )
    found = Case(name="", fleet=model, turns=turns, objective=level, warmup=0.0).run()
    every = overall(found).attainment
    assert every is not None
    return every.value


def _table_2(*, quick: bool) -> Table:
    rates = (1.0, 2.0) if quick else tuple(TABLE_2)
    model = fleet(
        "round-robin",
        block_size=16,
        cost=DISTSERVE["opt-66b-tp4-vllm"],
        worker={"num": 1, "kv_tokens": 78_496},
        scheduler=NO_CHUNKS,
    )
    cases = [
        Case(
            name=f"{rate:g}",
            fleet=model,
            turns=Make(sharegpt, rate, 150 if quick else 300),
            objective=level,
            warmup=0.0,
        )
        for rate in rates
        for level in LEVELS.values()
    ]
    found = run_all(cases, processes=1 if quick else None)
    rows: list[Row] = []
    for number, rate in enumerate(rates):
        both = [overall(each).attainment for each in found[2 * number : 2 * number + 2]]
        values = [round(100 * each.value, 1) for each in both if each is not None]
        rows.append((rate, *values, TABLE_2[rate]))
    columns = ("rate/s", *(f"in time %, {name}" for name in LEVELS), "paper's simulator %")
    return Table(title="OPT-66B, ShareGPT, colocated", columns=columns, rows=rows)
