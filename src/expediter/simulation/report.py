"""What a run was like for its requests and for its workers.

    queueing = until a worker takes the request into a batch     (and the network's way there)
    prefill  = from then to the first token
    decode   = from the first token to the last
    TTFT = queueing + prefill;  TPOT = decode / (output tokens - 1);  E2E = TTFT + decode
    normalised latency = E2E / output tokens

Latencies are of complete answers; attainment and goodput count every request, so one that was
lost or refused missed its objective. The first `warmup` share of the requests is left out of
all that is about requests; workers' totals are of the whole run.
"""

from collections.abc import Mapping, Sequence

import msgspec

from expediter.simulation.answer import Answer
from expediter.simulation.experiment import Run
from expediter.simulation.statistics import (
    Distribution,
    Estimate,
    distribution,
    jains_index,
    mean,
)

ALL = "all"


class Objective(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A class's service level in seconds; what is not given is not asked for."""

    ttft: float | None = None
    tpot: float | None = None


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests under one policy; seconds, and requests a second for goodput."""

    policy: str
    label: str
    num_requests: int
    num_failed: int
    num_retried: int
    ttft: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    normalised_latency: Distribution | None
    queueing: Distribution | None
    prefill: Distribution | None
    decode: Distribution | None
    attainment: Estimate | None
    goodput: float
    goodput_per_worker: float
    token_hit_rate: float
    predicted_hit_rate: float


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker over the whole run; `utilisation` is the share of time spent in steps."""

    worker_id: str
    num_requests: int
    num_prompt_tokens: int
    num_evicted_blocks: int
    num_preemptions: int
    num_steps: int
    utilisation: float


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. `imbalance` is max over mean of prompt tokens computed; `fairness` is Jain's
    index over classes of their mean normalised latency's inverse, 1 with a single class.
    """

    policy: str
    seconds: float
    imbalance: float
    fairness: float
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
    return Report(runs=[_run_report(run, objectives or {}, warmup) for run in runs])


def _run_report(run: Run, objectives: Mapping[str, Objective], warmup: float) -> RunReport:
    counted = run.answers[int(len(run.answers) * warmup) :]
    labels = sorted({answer.turn.label for answer in counted})
    groups = {ALL: list(counted)}
    if labels != [ALL]:
        groups |= {label: [a for a in counted if a.turn.label == label] for label in labels}
    seconds = run.seconds - (counted[0].arrived_at - run.answers[0].arrived_at if counted else 0)
    judged = _Judged(objectives)
    classes = [
        _class_report(run, label=label, answers=answers, judged=judged, seconds=seconds)
        for label, answers in groups.items()
    ]
    reasons: dict[str, int] = {}
    for answer in counted:
        reasons[answer.reason] = reasons.get(answer.reason, 0) + 1
    computed = [worker.num_prompt_tokens for worker in run.workers]
    return RunReport(
        policy=run.policy,
        seconds=run.seconds,
        imbalance=max(computed) * len(computed) / sum(computed) if sum(computed) else 1.0,
        fairness=_fairness(classes),
        reasons=dict(sorted(reasons.items())),
        classes=classes,
        workers=_worker_reports(run),
    )


def _class_report(
    run: Run, *, label: str, answers: Sequence[Answer], judged: "_Judged", seconds: float
) -> ClassReport:
    complete = [answer for answer in answers if answer.is_complete]
    stages = [_Stages(answer) for answer in complete]
    num_good = sum(judged.is_good(answer) for answer in answers)
    goodput = num_good / seconds if seconds > 0 else 0.0
    prompt_tokens = sum(a.turn.num_prompt_tokens for a in complete) or 1
    return ClassReport(
        policy=run.policy,
        label=label,
        num_requests=len(answers),
        num_failed=len(answers) - len(complete),
        num_retried=sum(answer.num_tries > 1 for answer in answers),
        ttft=distribution([s.ttft for s in stages]),
        tpot=distribution([s.tpot for s in stages if s.tpot is not None]),
        e2e=distribution([s.e2e for s in stages]),
        normalised_latency=distribution([s.normalised for s in stages]),
        queueing=distribution([s.queueing for s in stages]),
        prefill=distribution([s.ttft - s.queueing for s in stages]),
        decode=distribution([s.e2e - s.ttft for s in stages]),
        attainment=mean([float(judged.is_good(answer)) for answer in answers]),
        goodput=goodput,
        goodput_per_worker=goodput / len(run.workers),
        token_hit_rate=sum(a.cached_tokens for a in complete) / prompt_tokens,
        predicted_hit_rate=sum(a.matched_tokens for a in complete) / prompt_tokens,
    )


class _Stages:
    """A complete answer's times."""

    __slots__ = ("e2e", "normalised", "queueing", "tpot", "ttft")

    def __init__(self, answer: Answer) -> None:
        assert answer.finished_at is not None
        assert answer.first_token_at is not None
        assert answer.scheduled_at is not None
        self.queueing = answer.scheduled_at - answer.arrived_at
        self.ttft = answer.first_token_at - answer.arrived_at
        self.e2e = answer.finished_at - answer.arrived_at
        num_tokens = answer.num_output_tokens
        self.normalised = self.e2e / num_tokens
        self.tpot = (self.e2e - self.ttft) / (num_tokens - 1) if num_tokens > 1 else None


class _Judged:
    """Which answers kept their objective."""

    def __init__(self, objectives: Mapping[str, Objective]) -> None:
        self._objectives = objectives
        self._default = objectives.get(ALL, Objective())

    def is_good(self, answer: Answer) -> bool:
        if not answer.is_complete:
            return False
        wanted, stages = self._objectives.get(answer.turn.label, self._default), _Stages(answer)
        is_early = wanted.ttft is None or stages.ttft <= wanted.ttft
        return is_early and (wanted.tpot is None or (stages.tpot or 0.0) <= wanted.tpot)


def _fairness(classes: Sequence[ClassReport]) -> float:
    latencies = [c.normalised_latency for c in classes[1:] if c.normalised_latency is not None]
    return jains_index([1 / latency.mean.value for latency in latencies]) if latencies else 1.0


def _worker_reports(run: Run) -> list[WorkerReport]:
    answered: dict[str, int] = {}
    for answer in run.answers:
        if answer.worker_id is not None:
            answered[answer.worker_id] = answered.get(answer.worker_id, 0) + 1
    return [
        WorkerReport(
            worker_id=worker.worker_id,
            num_requests=answered.get(worker.worker_id, 0),
            num_prompt_tokens=worker.num_prompt_tokens,
            num_evicted_blocks=worker.num_evicted_blocks,
            num_preemptions=worker.num_preemptions,
            num_steps=worker.num_steps,
            utilisation=worker.busy_seconds / run.seconds if run.seconds else 0.0,
        )
        for worker in run.workers
    ]
