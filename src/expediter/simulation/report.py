"""What a run was like for its requests and for its workers.

    queueing = until a worker takes the request into a batch     (and the network's way there);
               of a pair also what it waits for room at the decode worker once it is prefilled
    transfer = what is waited for KV from the other worker once it is computed and there is room
    prefill  = the rest of the time to the first token
    decode   = from the first token to the last, without a transfer in between
    E2E = queueing + prefill + transfer + decode;  TPOT = (E2E - TTFT) / (output tokens - 1)
    TTFT = queueing + prefill, and the transfer if the first token comes after it
    normalised latency = E2E / output tokens
    slowdown = E2E / what it takes alone on an idle worker that holds nothing of the prompt

Latencies are of complete answers; attainment and goodput count every request, so one that was
lost or refused missed its objective. The first `warmup` share of the requests is left out of
all that is about requests; workers' totals are of the whole run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from expediter.load import WorkerRole
from expediter.results.objective import ALL, Objective, Objectives
from expediter.results.statistics import (
    Distribution,
    Estimate,
    distribution,
    jains_index,
    mean,
)
from expediter.simulation.answer import Answer
from expediter.simulation.experiment import Run
from expediter.simulation.stages import Alone, Stages
from expediter.simulation.totals import Waste, WorkerReport, waste, worker_reports

__all__ = ["ALL", "ClassReport", "Objective", "Report", "RunReport", "report"]

TOO_MANY_REQUESTS = 429


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests under one policy; seconds, and requests a second for goodput.

    `num_rejected` of the `num_failed` were refused by admission. `errors` counts by kind.
    """

    policy: str
    label: str
    num_requests: int
    num_failed: int
    num_rejected: int
    num_retried: int
    ttft: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    normalised_latency: Distribution | None
    queueing: Distribution | None
    prefill: Distribution | None
    transfer: Distribution | None
    decode: Distribution | None
    slowdown: Distribution | None
    attainment: Estimate | None
    goodput: float
    goodput_per_worker: float
    goodput_per_gpu: float
    token_hit_rate: float
    predicted_hit_rate: float
    errors: dict[str, int]


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. `imbalance` is max over mean of prompt tokens computed, of all workers that are
    not for decoding only; `fairness` is Jain's
    index over classes of their mean normalised latency's inverse, 1 with a single class;
    `max_slowdown` is that of the request that was slowed down most.
    """

    policy: str
    seconds: float
    num_gpus: int
    imbalance: float
    fairness: float
    max_slowdown: float | None
    waste: Waste
    reasons: dict[str, int]
    classes: list[ClassReport]
    workers: list[WorkerReport]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All policies on one workload; a function of its inputs, so equal runs are equal bytes."""

    runs: list[RunReport]

    def to_json(self) -> bytes:
        """Indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def report(
    runs: Sequence[Run],
    *,
    objectives: Mapping[str, Objective] | None = None,
    warmup: float = 0.0,
) -> Report:
    """`objectives` by label; the one of "all" holds for every label that has none."""
    return Report(runs=[_run_report(run, Objectives(objectives or {}), warmup) for run in runs])


def by_label(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """All of them first, then each class, unless it is the only one and called "all"."""
    labels = sorted({answer.turn.label for answer in answers})
    groups = {ALL: list(answers)}
    if labels != [ALL]:
        groups |= {label: [a for a in answers if a.turn.label == label] for label in labels}
    return groups


def counted(run: Run, warmup: float) -> Sequence[Answer]:
    """The answers that are not warm-up."""
    return run.answers[int(len(run.answers) * warmup) :]


def _run_report(run: Run, wanted: Objectives, warmup: float) -> RunReport:
    answers = counted(run, warmup)
    seconds = run.seconds - (answers[0].arrived_at - run.answers[0].arrived_at if answers else 0)
    alone = Alone(run.fleet.worker.cost)
    classes = [
        _class_report(run, label=label, stages=_Group(group, alone, wanted), seconds=seconds)
        for label, group in by_label(answers).items()
    ]
    computed = [w.num_prompt_tokens for w in run.workers if w.role is not WorkerRole.DECODE]
    slowdowns = [alone.slowdown(answer) for answer in answers if answer.is_complete]
    return RunReport(
        policy=run.policy,
        seconds=run.seconds,
        num_gpus=run.fleet.num_gpus,
        imbalance=max(computed) * len(computed) / sum(computed) if sum(computed) else 1.0,
        fairness=_fairness(classes),
        max_slowdown=max(slowdowns, default=None),
        waste=waste(run),
        reasons=dict(sorted(Counter(answer.reason for answer in answers).items())),
        classes=classes,
        workers=worker_reports(run),
    )


class _Group:
    """The answers of a class, and which of them are good."""

    def __init__(self, answers: Sequence[Answer], alone: Alone, wanted: Objectives) -> None:
        self.answers = answers
        self.complete = [answer for answer in answers if answer.is_complete]
        self.stages = [Stages(answer) for answer in self.complete]
        self.slowdowns = [alone.slowdown(answer) for answer in self.complete]
        self.good = [
            answer.is_complete and Stages(answer).meets(wanted.of(answer.turn.label))
            for answer in answers
        ]

    def of(self, name: str) -> Distribution | None:
        """The distribution of one stage over the answers that have it."""
        values = (getattr(stage, name) for stage in self.stages)
        return distribution([value for value in values if value is not None])

    @property
    def errors(self) -> dict[str, int]:
        """How many answers failed in which way."""
        kinds = Counter(a.error or f"status {a.status}" for a in self.answers if not a.is_complete)
        return dict(sorted(kinds.items()))


def _class_report(run: Run, *, label: str, stages: _Group, seconds: float) -> ClassReport:
    answers, complete = stages.answers, stages.complete
    goodput = sum(stages.good) / seconds if seconds > 0 else 0.0
    prompt_tokens = sum(a.turn.num_prompt_tokens for a in complete) or 1
    return ClassReport(
        policy=run.policy,
        label=label,
        num_requests=len(answers),
        num_failed=len(answers) - len(complete),
        num_rejected=sum(answer.status == TOO_MANY_REQUESTS for answer in answers),
        num_retried=sum(answer.num_tries > 1 for answer in answers),
        ttft=stages.of("ttft"),
        tpot=stages.of("tpot"),
        e2e=stages.of("e2e"),
        normalised_latency=stages.of("normalised"),
        queueing=stages.of("queueing"),
        prefill=stages.of("prefill"),
        transfer=stages.of("transfer"),
        decode=stages.of("decode"),
        slowdown=distribution(stages.slowdowns),
        attainment=mean([float(is_good) for is_good in stages.good]),
        goodput=goodput,
        goodput_per_worker=goodput / len(run.workers),
        goodput_per_gpu=goodput / run.fleet.num_gpus,
        token_hit_rate=sum(a.cached_tokens for a in complete) / prompt_tokens,
        predicted_hit_rate=sum(a.matched_tokens for a in complete) / prompt_tokens,
        errors=stages.errors,
    )


def _fairness(classes: Sequence[ClassReport]) -> float:
    latencies = [c.normalised_latency for c in classes[1:] if c.normalised_latency is not None]
    return jains_index([1 / latency.mean.value for latency in latencies]) if latencies else 1.0
