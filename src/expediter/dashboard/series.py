"""The last minutes' answers as numbers to show: percentiles and hit rates, whole and by time."""

from collections.abc import Callable, Sequence
from math import ceil

from expediter.gateway.activity import ACTIVITY_SECONDS, Answer

BUCKET_SECONDS = 10.0
NUM_BUCKETS = int(ACTIVITY_SECONDS / BUCKET_SECONDS)

Number = float | None


def summary(answers: Sequence[Answer]) -> dict[str, Number]:
    """What all of them come to; None where none of them tells."""
    return {
        "num_answers": len(answers),
        **{f"ttft_p{p}": percentile([ttft for _, ttft, *_ in answers], p) for p in (50, 95, 99)},
        **{f"tpot_p{p}": percentile(_paces(answers), p) for p in (50, 95, 99)},
        "predicted": predicted_hit_rate(answers),
        "actual": actual_hit_rate(answers),
    }


def by_time(answers: Sequence[Answer]) -> dict[str, list[Number]]:
    """The same for each ten seconds, oldest first, as columns; `ages` are how long ago each was."""
    buckets: list[list[Answer]] = [[] for _ in range(NUM_BUCKETS)]
    for answer in answers:
        buckets[min(int(answer[0] / BUCKET_SECONDS), NUM_BUCKETS - 1)].append(answer)
    buckets.reverse()
    ages = [(NUM_BUCKETS - place - 0.5) * BUCKET_SECONDS for place in range(NUM_BUCKETS)]
    columns: dict[str, list[Number]] = {"ages": [*ages]}
    for name, figure in _FIGURES.items():
        columns[name] = [figure(bucket) for bucket in buckets]
    return columns


def percentile(values: Sequence[float], percent: int) -> Number:
    """The smallest value that so many percent of all do not exceed; None for no values."""
    if not values:
        return None
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def predicted_hit_rate(answers: Sequence[Answer]) -> Number:
    """The share of prompt tokens thought to be cached, of those answers that told what was."""
    told = [(tokens, matched) for *_, cached, matched, tokens in answers if cached is not None]
    return _share(told)


def actual_hit_rate(answers: Sequence[Answer]) -> Number:
    """The share of prompt tokens that were cached."""
    return _share([(tokens, cached) for *_, tokens, cached, _, _ in answers if cached is not None])


def _share(counts: Sequence[tuple[int, int]]) -> Number:
    total = sum(tokens for tokens, _ in counts)
    return sum(found for _, found in counts) / total if total else None


def _paces(answers: Sequence[Answer]) -> list[float]:
    return [tpot for _, _, tpot, *_ in answers if tpot is not None]


_FIGURES: dict[str, Callable[[Sequence[Answer]], Number]] = {
    "num_answers": len,
    "ttft_p50": lambda answers: percentile([ttft for _, ttft, *_ in answers], 50),
    "ttft_p95": lambda answers: percentile([ttft for _, ttft, *_ in answers], 95),
    "tpot_p50": lambda answers: percentile(_paces(answers), 50),
    "tpot_p95": lambda answers: percentile(_paces(answers), 95),
    "predicted": predicted_hit_rate,
    "actual": actual_hit_rate,
}
