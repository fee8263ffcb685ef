"""What a run was like, seen from the client.

    TTFT = from the request's first byte to the first output
    TPOT = from the first output to the last / (output tokens - 1)
    ITL  = between one chunk of output and the next
    E2E  = from the request's first byte to the last output;  normalised = E2E / output tokens
    lag  = from when a request was due to when it was sent

Latencies are of complete answers; attainment and goodput count every request. The first `warmup`
share of the requests is left out, of rates too. Token counts are the endpoint's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from expediter.bench.load import Answered, Load
from expediter.results.objective import ALL, Objective, Objectives
from expediter.results.statistics import Distribution, Estimate, distribution, mean


class BenchClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests. Hit rate and cached tokens are None if the endpoint does not say."""

    label: str
    num_requests: int
    num_failed: int
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    normalised_latency: Distribution | None
    attainment: Estimate | None
    goodput: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    token_hit_rate: float | None
    errors: dict[str, int]


class BenchWorker(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker behind a gateway answered, as the gateway names it."""

    worker: str
    num_requests: int
    prompt_tokens: int
    cached_tokens: int


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request; times are seconds from the start of the run, latencies seconds."""

    label: str
    session: str | None
    due_at: float
    sent_at: float
    first_at: float | None
    last_at: float | None
    status: int
    error: str | None
    worker: str | None
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run; rates are a second."""

    model: str
    seconds: float
    request_rate: float
    output_token_rate: float
    most_open: int
    lag: Distribution | None
    max_lag: float
    classes: list[BenchClass]
    workers: list[BenchWorker]
    requests: list[BenchRow]


def bench_report(
    load: Load, *, model: str, objectives: Mapping[str, Objective], warmup: float = 0.0
) -> BenchReport:
    """The report of one run."""
    counted = load.answered[int(len(load.answered) * warmup) :]
    seconds = load.seconds - (counted[0].sent_at if warmup and counted else 0.0)
    wanted = Objectives(objectives)
    classes = [
        _class(label, group, seconds=seconds, wanted=wanted)
        for label, group in _by_label(counted).items()
    ]
    return BenchReport(
        model=model,
        seconds=load.seconds,
        request_rate=_rate(sum(each.reply.is_complete for each in counted), seconds),
        output_token_rate=_rate(classes[0].output_tokens, seconds),
        most_open=load.most_open,
        lag=distribution([each.lag for each in load.answered]),
        max_lag=max((each.lag for each in load.answered), default=0.0),
        classes=classes,
        workers=_workers(counted),
        requests=[_row(each) for each in load.answered],
    )


def _by_label(counted: Sequence[Answered]) -> dict[str, list[Answered]]:
    groups = {ALL: list(counted)}
    labels = sorted({each.turn.label for each in counted})
    if labels != [ALL]:
        groups |= {label: [a for a in counted if a.turn.label == label] for label in labels}
    return groups


def _class(
    label: str, group: Sequence[Answered], *, seconds: float, wanted: Objectives
) -> BenchClass:
    complete = [each for each in group if each.reply.is_complete]
    good = [_is_good(each, wanted) for each in group]
    prompt_tokens = sum(_prompt_tokens(each) for each in complete)
    cached = [_cached_tokens(each) for each in complete]
    known = [each for each in cached if each is not None]
    return BenchClass(
        label=label,
        num_requests=len(group),
        num_failed=len(group) - len(complete),
        ttft=_known(each.reply.ttft for each in complete),
        tpot=_known(each.reply.tpot for each in complete),
        itl=distribution(_gaps(complete)),
        e2e=_known(each.reply.e2e for each in complete),
        normalised_latency=_known(_normalised(each) for each in complete),
        attainment=mean([float(is_good) for is_good in good]),
        goodput=_rate(sum(good), seconds),
        prompt_tokens=prompt_tokens,
        output_tokens=sum(each.reply.num_output_tokens for each in complete),
        cached_tokens=sum(known) if known else None,
        token_hit_rate=sum(known) / prompt_tokens if known and prompt_tokens else None,
        errors=dict(sorted(Counter(_error(each) for each in group if _error(each)).items())),
    )


def _known(values: Iterable[float | None]) -> Distribution | None:
    return distribution([value for value in values if value is not None])


def _gaps(complete: Sequence[Answered]) -> list[float]:
    return [later - sooner for a in complete for sooner, later in pairwise(a.reply.token_times)]


def _normalised(each: Answered) -> float | None:
    e2e = each.reply.e2e
    return None if e2e is None else e2e / max(1, each.reply.num_output_tokens)


def _is_good(each: Answered, wanted: Objectives) -> bool:
    reply = each.reply
    if reply.ttft is None or reply.e2e is None:
        return False
    return wanted.of(each.turn.label).is_met(ttft=reply.ttft, tpot=reply.tpot, e2e=reply.e2e)


def _error(each: Answered) -> str:
    reply = each.reply
    return "" if reply.is_complete else reply.error or f"{reply.status}"


def _workers(counted: Sequence[Answered]) -> list[BenchWorker]:
    groups: dict[str, list[Answered]] = {}
    for each in counted:
        if each.reply.worker is not None:
            groups.setdefault(each.reply.worker, []).append(each)
    return [
        BenchWorker(
            worker=worker,
            num_requests=len(group),
            prompt_tokens=sum(map(_prompt_tokens, group)),
            cached_tokens=sum(_cached_tokens(each) or 0 for each in group),
        )
        for worker, group in sorted(groups.items())
    ]


def _row(each: Answered) -> BenchRow:
    reply, times = each.reply, each.reply.token_times
    started = reply.sent_at - each.sent_at
    return BenchRow(
        label=each.turn.label,
        session=each.turn.session,
        due_at=each.due_at,
        sent_at=each.sent_at,
        first_at=times[0] - started if times else None,
        last_at=times[-1] - started if times else None,
        status=reply.status,
        error=_error(each) or None,
        worker=reply.worker,
        prompt_tokens=_prompt_tokens(each),
        cached_tokens=_cached_tokens(each),
        output_tokens=reply.num_output_tokens,
    )


def _prompt_tokens(each: Answered) -> int:
    return each.reply.usage.prompt_tokens if each.reply.usage else 0


def _cached_tokens(each: Answered) -> int | None:
    return each.reply.usage.cached_tokens if each.reply.usage else None


def _rate(number: float, seconds: float) -> float:
    return number / seconds if seconds > 0 else 0.0
