"""What a dashboard shows beyond totals: the last minutes' answers, their stages, hot prefixes.

All of it is read from the record of decisions when somebody looks; nothing is counted for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from expediter.cluster.decisions import Decision
from expediter.gateway.hot_prefixes import COARSE_TOKENS, HotPrefix, name_of
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import BlockKey, named_prompt

ACTIVITY_SECONDS = 300.0

Answer = tuple[float, float, float | None, int, int | None, int, int]
"""How long ago it was placed, its TTFT and its TPOT in seconds; its prompt's tokens and how many of
them were cached, as its worker counts; how many of how many were thought to be, as counted here."""


def answers_of(recent: Iterable[Decision], *, now: float) -> list[Answer]:
    """The answers of the last minutes; the oldest are left out if there are too many to keep."""
    since = now - ACTIVITY_SECONDS
    return [
        _answer(decision, decision.ttft, now=now)
        for decision in recent
        if decision.is_answered and decision.ttft is not None and decision.placed_at >= since
    ]


def _answer(decision: Decision, ttft: float, *, now: float) -> Answer:
    arrived_at = decision.placed_at if decision.arrived_at is None else decision.arrived_at
    return (
        now - decision.placed_at,
        decision.placed_at + ttft - arrived_at,
        _seconds_per_token(decision, ttft),
        decision.prompt_tokens or decision.num_tokens,
        decision.cached_tokens,
        decision.matched_tokens,
        decision.num_tokens,
    )


def _seconds_per_token(decision: Decision, ttft: float) -> float | None:
    num_tokens, ended_at = decision.output_tokens, decision.ended_at
    if num_tokens is None or num_tokens < 2 or ended_at is None:
        return None
    return (ended_at - decision.placed_at - ttft) / (num_tokens - 1)


def stages_of(decision: Decision) -> dict[str, float]:
    """Seconds of each stage that is over, in order; the times of all together are its whole time.

    `read`: until it was read and its prompt known; `place`: until a worker was chosen, which is
    long where others failed before; `first_token`: queued and computed there; `answer`: the rest.
    """
    stages: dict[str, float] = {}
    if decision.arrived_at is not None and decision.read_at is not None:
        stages["read"] = decision.read_at - decision.arrived_at
        stages["place"] = decision.placed_at - decision.read_at
    if decision.ttft is not None:
        stages["first_token"] = decision.ttft
        if decision.ended_at is not None:
            stages["answer"] = decision.ended_at - decision.placed_at - decision.ttft
    return stages


def prefixes_of(
    tree: Sequence[HotPrefix], index: PrefixIndex, *, now: float
) -> list[dict[str, object]]:
    """Hot prefixes, each with the workers that hold all of it."""
    return [
        {
            "prefix": name_of(prefix.key),
            "parent": name_of(prefix.parent) if prefix.parent is not None else None,
            "num_tokens": prefix.num_tokens,
            "num_requests": prefix.num_requests,
            "age_seconds": round(now - prefix.last_used_at, 3),
            "workers": sorted(_holders(prefix.key, index)),
        }
        for prefix in tree
    ]


def _holders(key: BlockKey, index: PrefixIndex) -> set[WorkerId]:
    """A prompt of this one block matches at those; its size is one that divides the distances."""
    found: set[WorkerId] = set()
    size = 1
    while size <= COARSE_TOKENS:
        found |= index.match(named_prompt([key], num_tokens=size + 1, block_size=size)).keys()
        size *= 2
    return found


def merged_activity(found: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """That of several processes as one's: requests for a prefix add up, its holders are united."""
    prefixes: dict[str, dict[str, Any]] = {}
    for activity in found:
        for prefix in activity["prefixes"]:
            known = prefixes.setdefault(prefix["prefix"], dict(prefix, num_requests=0))
            known["num_requests"] += prefix["num_requests"]
            known["age_seconds"] = min(known["age_seconds"], prefix["age_seconds"])
            known["workers"] = sorted({*known["workers"], *prefix["workers"]})
    return {
        "answers": [answer for activity in found for answer in activity["answers"]],
        "prefixes": list(prefixes.values()),
    }
