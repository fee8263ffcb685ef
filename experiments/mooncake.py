"""Mooncake (FAST'25): hits by the size of the cache, and its prefill schedulers.

Figure 9 counts 256-token blocks; the published traces have 512. The schedulers run prefill alone
(answers of one token) on eight Llama-3-70B workers of 8 A100. *Local cache-aware* takes the least
of queue and prefill with what each worker has cached: `slo` without its weights. The *global* one
may also fetch a prefix from another worker (`conductor.py`), over the paper's four cards of 200
Gb/s, of which it measured 87 GB/s.
"""

import asyncio
import random
from dataclasses import replace as altered
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from expediter.config import RoutingConfig
from expediter.config.routing import SloConfig
from expediter.routing.gpu_cost import NAMED_COSTS
from expediter.simulation.catalog import named_cost
from expediter.simulation.fabric import Fabric
from expediter.simulation.fleet import FleetModel
from expediter.simulation.links import GB, Interconnect
from expediter.workload.analysis import hit_curve
from expediter.workload.streams import faster
from expediter.workload.traces import MOONCAKE_BLOCK, read_mooncake
from expediter.workload.transcript import Segment
from expediter.workload.turn import Turn
from experiments.conductor import GlobalCacheAware
from experiments.running import Case, Make, Row, Table, fleet, overall, run_all, traces

SIZES = (None, 1_000_000, 3_000_000, 10_000_000, 50_000_000)
PUBLISHED_HITS = {
    ("conversation", None): "40 %",
    ("conversation", 3_000_000): "41 % of the most",
    ("synthetic", None): "66 %",
    ("synthetic", 3_000_000): "46 % of the most",
}
A100 = SloConfig(gpu_cost="llama3-70b-8xa100-vllm", decode_weight=0.0)
SCHEDULERS = {
    "random": ("random", RoutingConfig(), 19.65),
    "load balance": ("least-loaded", RoutingConfig(), 5.27),
    "local cache-aware": ("slo", RoutingConfig(slo=replace(A100, congestion_weight=0.0)), 3.58),
    "global cache-aware": ("slo", RoutingConfig(slo=A100), 3.07),
    "slo": ("slo", RoutingConfig(slo=A100), 0.0),
}
THRESHOLD = 2.0  # of the best match over a worker's own; the paper does not say its own
KV_BYTES = 327_680  # a token
CARDS = Interconnect(num_nics=4, nic_bandwidth=87 * GB / 4)


def run(*, quick: bool) -> list[Table]:
    """Nothing without the traces."""
    folder = traces()
    if folder is None:
        print("mooncake needs EXPEDITER_TRACES")
        return []
    return [_hits(folder / "mooncake", quick=quick), _schedulers(folder / "mooncake", quick=quick)]


@lru_cache(maxsize=1)
def prefill_only(path: Path, num_requests: int, factor: float) -> list[Turn]:
    """The first requests, each with an answer of one token."""
    turns = list(read_mooncake(path))[:num_requests]
    short = [
        replace(turn, transcript=turn.prompt.plus(Segment(f"answer {n}", 1)))
        for n, turn in enumerate(turns)
    ]
    return list(faster(factor, short))


def conductor(rng: random.Random) -> GlobalCacheAware:
    """Mooncake's global scheduler."""
    del rng
    return GlobalCacheAware(
        threshold=THRESHOLD,
        seconds_per_token=KV_BYTES / (CARDS.num_nics * CARDS.nic_bandwidth),
        clock=asyncio.get_running_loop().time,
        cost=NAMED_COSTS[A100.gpu_cost],
        block_size=MOONCAKE_BLOCK,
    )


def _fleet(policy: str, routing: RoutingConfig) -> FleetModel:
    made = fleet(
        policy,
        block_size=MOONCAKE_BLOCK,
        cost=named_cost("llama3-70b_a100_sxm_vllm_tp8"),
        worker={"kv_tokens": 3_000_000},
        routing=routing,
    )
    return altered(made, fabric=Fabric(interconnect=CARDS, kv_bytes_per_token=KV_BYTES))


def _hits(folder: Path, *, quick: bool) -> Table:
    rows: list[Row] = []
    for name in ("conversation", "synthetic"):
        turns = list(read_mooncake(folder / f"{name}_trace.jsonl"))[: 300 if quick else None]
        curve = hit_curve(
            turns, block_size=MOONCAKE_BLOCK, with_answers=False, with_partial_blocks=True
        )
        most = curve.at().blocks
        for size in SIZES:
            found = curve.at(None if size is None else size // MOONCAKE_BLOCK).blocks
            row = (name, "no limit" if size is None else f"{size / 1e6:g} M tokens")
            theirs = PUBLISHED_HITS.get((name, size), "")
            rows.append((*row, round(100 * found, 1), round(100 * found / most), theirs))
    columns = ("trace", "cache", "blocks hit %", "of the most %", "paper")
    return Table(title="Hits by the size of one LRU cache", columns=columns, rows=rows)


def _schedulers(folder: Path, *, quick: bool) -> Table:
    num_requests, rates = (200, (1.0,)) if quick else (3000, (1.0, 1.5))
    path = folder / "conversation_trace.jsonl"
    cases = [
        Case(
            name=name,
            fleet=_fleet(policy, routing),
            turns=Make(prefill_only, path, num_requests, factor),
            make_policy=conductor if name == "global cache-aware" else None,
        )
        for factor in rates
        for name, (policy, routing, _) in SCHEDULERS.items()
    ]
    factors = [factor for factor in rates for _ in SCHEDULERS]
    rows: list[Row] = []
    for factor, found in zip(factors, run_all(cases, processes=1 if quick else None), strict=True):
        every = overall(found)
        assert every.ttft is not None
        theirs = SCHEDULERS[found.policy][2]
        mean, hits = round(every.ttft.mean.value, 2), round(100 * every.token_hit_rate, 1)
        moved = round(found.waste.transferred_bytes / GB)
        paper = f"{theirs} s" if theirs else ""
        rows.append((f"{factor:g}x", found.policy, mean, hits, moved, paper))
    columns = ("speed", "scheduler", "mean TTFT s", "hit rate %", "GB moved", "paper")
    title = f"Prefill schedulers, conversation trace, {num_requests:,} requests"
    return Table(title=title, columns=columns, rows=rows)
