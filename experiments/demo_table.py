"""The page's comparison of policies: its published numbers, real text, and real queues.

Three forms of the same traffic. *Published*: whole entries in an LRU (`demo_traffic.py`). *Blocks*:
what the requests really share, in blocks with an LRU. *Served*: the cluster on the virtual clock,
with queues and service times. And a ring of hashes to which a replica is added halfway.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import islice

from expediter.load import WorkerId
from expediter.routing.hash_ring import HashRing
from expediter.workload.arrivals import even
from expediter.workload.catalog import named_workload
from expediter.workload.demo import Demo
from expediter.workload.turn import Turn
from experiments.demo_traffic import Place, Setting, simulate
from experiments.lru import LRU
from experiments.running import Case, Make, Row, Table, fleet, ms, overall, run_all

SEEDS = range(1, 9)
BLOCK = 100
NUM_REQUESTS, WARM_UP = 20_000, 5_000
POLICIES = (
    "random",
    "round-robin",
    "least-loaded",
    "power-of-two",
    "sticky",
    "sglang",
    "dynamo",
    "cache-aware",
    "preble",
    "slo",
)
Rule = Callable[[int, int], Place]
"""From a seed and a number of replicas to a rule."""


def at_random(seed: int, num_replicas: int) -> Place:
    rng = random.Random(seed)
    return lambda _, __, ___: rng.randrange(num_replicas)


def round_robin(seed: int, num_replicas: int) -> Place:
    turns = iter(range(seed, 10**9))
    return lambda _, __, ___: next(turns) % num_replicas


def sticky(_: int, num_replicas: int) -> Place:
    return lambda conversation, __, ___: conversation % num_replicas


def _guarded(_: int, matches: Sequence[int], loads: Sequence[float], *, most: float) -> int:
    limit = most * sum(loads) / len(loads)
    eligible = [i for i, load in enumerate(loads) if load <= limit]
    return max(eligible, key=lambda i: (matches[i], -loads[i]))


def cache_aware(_: int, __: int) -> Place:
    return partial(_guarded, most=1.2)


def longest_match(_: int, __: int) -> Place:
    return partial(_guarded, most=1e9)


RULES: dict[str, Rule] = {
    "random": at_random,
    "round-robin": round_robin,
    "sticky": sticky,
    "cache-aware": cache_aware,
    "longest match": longest_match,
}
SETTINGS = {
    "as published": Setting(),
    "skew 0": Setting(skew=0.0),
    "caches of 50,000": Setting(capacity=50_000),
}
PUBLISHED = {
    ("as published", "random"): "55 %",
    ("as published", "round-robin"): "55 %",
    ("as published", "sticky"): "97 %, 1.74",
    ("as published", "cache-aware"): "94 %, 1.05",
    ("skew 0", "sticky"): "59 %, 1.1",
    ("skew 0", "cache-aware"): "59 %",
    ("caches of 50,000", "cache-aware"): "56 %",
}
BLOCK_FORM = {
    "random": "51.9 %",
    "round-robin": "51.8 %",
    "sticky": "95.0 %",
    "cache-aware": "93.0 %",
}


def run(*, quick: bool) -> list[Table]:
    """Four tables."""
    seeds = SEEDS[:1] if quick else SEEDS
    return [
        _published(seeds, quick=quick),
        _blocks(seeds, quick=quick),
        _served(quick=quick),
        _ring(),
    ]


def _published(seeds: Sequence[int], *, quick: bool) -> Table:
    rows: list[Row] = []
    for setting, values in SETTINGS.items():
        for name, rule in RULES.items():
            if quick and (setting, name) not in PUBLISHED:
                continue
            found = [simulate(rule(s, values.num_replicas), values, seed=s) for s in seeds]
            hits, imbalances = zip(*found, strict=True)
            theirs = PUBLISHED.get((setting, name), "")
            rows.append((setting, name, *_spread(hits, 100), *_spread(imbalances, 1), theirs))
    columns = ("setting", "policy", "hit rate %", "sd", "imbalance", "sd ", "published")
    return Table(title=f"The demo as published, {len(seeds)} seeds", columns=columns, rows=rows)


def _blocks(seeds: Sequence[int], *, quick: bool) -> Table:
    rows: list[Row] = []
    for name in ("cache-aware",) if quick else BLOCK_FORM:
        found = [block_form(RULES[name](seed, 8), seed=seed) for seed in seeds]
        hits, imbalances = zip(*found, strict=True)
        rows.append((name, *_spread(hits, 100), *_spread(imbalances, 1), BLOCK_FORM[name]))
    columns = ("policy", "hit rate %", "sd", "imbalance", "sd ", "expected")
    title = f"Real text: a history that starts over is new; {len(seeds)} seeds"
    return Table(title=title, columns=columns, rows=rows)


def block_form(place: Place, *, seed: int) -> tuple[float, float]:
    """Hit rate and imbalance; blocks of 100 tokens divide all lengths, so they are exact."""
    caches = [LRU(400_000 // BLOCK) for _ in range(8)]
    turns = Demo().turns(even(10.0).times(random.Random(1)), rng=random.Random(seed))
    recent: list[tuple[int, int]] = []
    loads, computed = [0.0] * 8, [0] * 8
    num_hit = num_all = 0
    for number, turn in enumerate(islice(turns, NUM_REQUESTS)):
        names = turn.prompt.block_hashes(BLOCK)
        matches = [cache.num_hits(names) * BLOCK for cache in caches]
        chosen = place(_conversation(turn), matches, loads)
        missed = turn.num_prompt_tokens - matches[chosen]
        caches[chosen].use(turn.transcript.block_hashes(BLOCK))
        recent.append((chosen, missed))
        loads[chosen] += missed
        if len(recent) > 500:
            oldest, left = recent[-501]
            loads[oldest] -= left
        if number >= WARM_UP:
            num_hit += matches[chosen]
            num_all += turn.num_prompt_tokens
            computed[chosen] += missed
    return num_hit / num_all, max(computed) * 8 / sum(computed)


@lru_cache(maxsize=1)
def chat(num_requests: int) -> list[Turn]:
    """The demo's traffic at 20 requests a second."""
    return list(named_workload("demo", rate=20.0, num_requests=num_requests, seed=1))


def _served(*, quick: bool) -> Table:
    num_requests = 200 if quick else 3000
    policies = ("random", "slo") if quick else POLICIES
    cases = [
        Case(
            name=policy,
            fleet=fleet(policy, block_size=BLOCK, worker={"kv_tokens": 400_000}),
            turns=Make(chat, num_requests),
        )
        for policy in policies
    ]
    rows: list[Row] = []
    for found in run_all(cases, processes=1 if quick else None):
        every = overall(found)
        assert every.ttft is not None
        times = ms(every.ttft.p50.value), ms(every.ttft.p95.value)
        hits = round(100 * every.token_hit_rate, 1)
        rows.append((found.policy, *times, hits, round(found.imbalance, 2)))
    columns = ("policy", "TTFT p50 ms", "p95", "hit rate %", "imbalance")
    title = f"Served by eight 70B workers, 20 requests a second, {num_requests:,} requests"
    return Table(title=title, columns=columns, rows=rows)


def _ring() -> Table:
    """Replica 9 joins after 12,500 of 20,000 requests, and begins with an empty cache."""
    ring = HashRing(num_points=100)
    for number in range(8):
        ring.add(WorkerId(f"{number}"))
    owners = {c: ring.owner(f"{c}".encode()) for c in range(500)}
    calls = 0

    def place(conversation: int, _: Sequence[int], __: Sequence[float]) -> int:
        nonlocal calls
        calls += 1
        if calls == 12_501:
            ring.add(WorkerId("8"))
        return int(ring.owner(f"{conversation}".encode()))

    hit_rate, imbalance = simulate(place, Setting(num_replicas=9), seed=1)
    moved = sum(ring.owner(f"{c}".encode()) != owner for c, owner in owners.items()) / 500
    theirs = round(100 / 9, 1)
    return Table(
        title="A ring of hashes to which a ninth replica is added halfway through what counts",
        columns=("keys moved %", "1 / (N + 1) %", "hit rate %", "imbalance"),
        rows=[(round(100 * moved, 1), theirs, round(100 * hit_rate, 1), round(imbalance, 2))],
    )


def _spread(values: Sequence[float], factor: float) -> tuple[float, float]:
    sd = statistics.stdev(values) if len(values) > 1 else 0.0
    return round(factor * statistics.fmean(values), 2), round(factor * sd, 2)


def _conversation(turn: Turn) -> int:
    assert turn.session is not None
    return int(turn.session.rpartition("/")[2])
