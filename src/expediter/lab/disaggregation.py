"""What it takes to prefill on one replica and decode on another: bytes, time, how many of each.

All of it is the planner's arithmetic (`planner/sizing.py`): means only, no queues.
"""

import math
from dataclasses import dataclass, replace

from expediter.model_spec import ModelSpec
from expediter.planner import sizing
from expediter.planner.links import LINKS, Link, named_link
from expediter.planner.own import OwnFacts
from expediter.simulation.costs import CostModel, LinearCost
from expediter.simulation.models import named_model
from expediter.simulation.roofline import Roofline

PROMPTS = tuple(round(1000 * 2 ** (step / 2)) for step in range(15))
"""Prompt lengths of the curves, to 128,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is asked. `hit_rate` is the share of prompt tokens that the prefill replica holds.

    With `cost` "linear" a prompt token takes 0.1 ms and a decode step of B requests 20 + 0.2 B ms,
    whatever the model; with "roofline" both follow from the model, the GPU and `tp`.
    """

    model: str
    dtype: str
    tp: int
    link: str
    one_card: bool
    cost: str
    gpu: str
    prompt: int  # of the request whose KV moves
    mean: int  # prompt tokens of the traffic that the pools are for
    output: int
    rate: float
    tpot: float  # seconds
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A prompt's KV over one kind of link."""

    link: str
    source: str
    bytes_per_second: float
    seconds: float
    share_of_prefill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas that a stage keeps busy, and whole ones that can keep up."""

    busy: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`decode` is None where no batch, not even of one, can meet the TPOT target."""

    kv_bytes_per_token: int
    kv_bytes: int
    kv_bytes_per_link: float
    num_links: int
    prefill_seconds: float
    decode_step_seconds: float  # of one request alone
    chosen: Way
    ways: list[Way]
    prefill: Pool
    prefill_with_hits: Pool
    decode: Pool | None
    decode_concurrency: float
    max_batch: int
    transfer_bytes_per_second: float  # of the whole fleet
    curve_prompts: list[int]
    curve_prefill: list[float]
    curve_transfer: list[float]


def answer(case: Case) -> Answer:
    """Raises ConfigError for names that nothing is called."""
    spec, cost, link = _spec(case), _cost(case), named_link(case.link)
    num_bytes, num_links = spec.kv_bytes(case.prompt), 1 if case.one_card else case.tp
    prefill = sizing.prefill_seconds(cost, new=case.prompt)
    traffic = sizing.Traffic(rate=case.rate, new=case.mean, output=case.output)
    decode = sizing.decode_work(traffic, cost, tpot=case.tpot, kv_tokens=None)
    return Answer(
        kv_bytes_per_token=spec.kv_bytes_per_token,
        kv_bytes=num_bytes,
        kv_bytes_per_link=num_bytes / num_links,
        num_links=num_links,
        prefill_seconds=prefill,
        decode_step_seconds=decode.floor_seconds,
        chosen=_way(link, num_bytes, num_links, prefill),
        ways=[_way(each, num_bytes, num_links, prefill) for each in LINKS.values()],
        prefill=_prefill_pool(traffic, cost, 0.0),
        prefill_with_hits=_prefill_pool(traffic, cost, case.hit_rate),
        decode=_pool(decode.num_replicas) if decode.max_batch else None,
        decode_concurrency=decode.concurrency,
        max_batch=decode.max_batch,
        transfer_bytes_per_second=case.rate * spec.kv_bytes(case.mean),
        curve_prompts=list(PROMPTS),
        curve_prefill=[sizing.prefill_seconds(cost, new=tokens) for tokens in PROMPTS],
        curve_transfer=_transfers(spec, link, num_links),
    )


def _spec(case: Case) -> ModelSpec:
    return replace(named_model(case.model).spec, dtype=case.dtype)


def _cost(case: Case) -> CostModel:
    if case.cost == "linear":
        return LinearCost()
    return Roofline(model=named_model(case.model), gpu=OwnFacts().gpu(case.gpu), num_gpus=case.tp)


def _way(link: Link, num_bytes: int, num_links: int, prefill: float) -> Way:
    seconds = sizing.transfer(num_bytes, link, num_links=num_links).seconds
    return Way(
        link=link.name,
        source=link.source,
        bytes_per_second=link.bytes_per_second,
        seconds=seconds,
        share_of_prefill=seconds / prefill,
    )


def _transfers(spec: ModelSpec, link: Link, num_links: int) -> list[float]:
    return [
        sizing.transfer(spec.kv_bytes(tokens), link, num_links=num_links).seconds
        for tokens in PROMPTS
    ]


def _prefill_pool(traffic: sizing.Traffic, cost: CostModel, hit_rate: float) -> Pool:
    cached = hit_rate * traffic.num_prompt_tokens
    return _pool(sizing.prefill_work(traffic, cost, cached=cached).num_replicas)


def _pool(busy: float) -> Pool:
    # A hair of tolerance: 6.0000000001 replicas are six.
    return Pool(busy=busy, replicas=max(1, math.ceil(busy - 1e-9)))
