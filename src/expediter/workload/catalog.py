"""Workloads by name, as a command line or a configuration names them.

A rate is requests a second. Workloads of sessions begin with most of them going on: they would
otherwise need many minutes to come to their rate.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from expediter.errors import ConfigError
from expediter.workload.arrivals import poisson
from expediter.workload.conversations import AGENTS, CHAT, Conversations
from expediter.workload.demo import Demo
from expediter.workload.distributions import num_tokens
from expediter.workload.distserve import HUMANEVAL, LONGBENCH, SHAREGPT
from expediter.workload.hot_prefix import HotPrefix
from expediter.workload.preble import TABLE, preble
from expediter.workload.robots import Robots
from expediter.workload.shared_prefix import DOCUMENTS, FEW_SHOT, PARALLEL_SAMPLES, SharedPrefix
from expediter.workload.storage import read_workload
from expediter.workload.streams import faster, first
from expediter.workload.traces import read_azure, read_burstgpt, read_mooncake
from expediter.workload.turn import Turn
from expediter.workload.underway import underway

DEFAULT_WORKLOAD = "chat"

TraceFormat = Literal["mooncake", "azure", "burstgpt", "workload"]

NUM_DRAWS = 10_000  # to find how many turns a conversation has in the mean
UNDERWAY_SECONDS = 1800.0
SECONDS_PER_TOKEN = 0.012  # of an answer, to reckon which sessions go on; a guess will do

_READERS: Mapping[TraceFormat, Callable[[Path], Iterator[Turn]]] = {
    "mooncake": read_mooncake,
    "azure": read_azure,
    "burstgpt": read_burstgpt,
    "workload": read_workload,
}


def workload_names() -> list[str]:
    """Every name that `named_workload` knows."""
    return [*_conversations(), *_shared_prefixes(), "demo", "hot-prefix", "robots"]


def named_workload(name: str, *, rate: float, num_requests: int, seed: int) -> Iterator[Turn]:
    """The first requests of the workload with this name; `ConfigError` says which there are."""
    if name not in workload_names():
        names = ", ".join(workload_names())
        raise ConfigError(f"no workload is called {name!r}; there are {names}")
    rng = random.Random(f"workload {seed}")
    return first(num_requests, _turns(name, rate, num_requests, rng))


def read_trace(
    path: Path, *, form: TraceFormat, num_requests: int | None = None, rate: float | None = None
) -> list[Turn]:
    """The first requests of a trace: all by default, and as fast as they were recorded.

    Raises ConfigError if the file cannot be read, and WorkloadError for a row that cannot be used.
    """
    try:
        turns = list(islice(_READERS[form](path), num_requests))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if not turns:
        raise ConfigError(f"{path}: no requests")
    return turns if rate is None else _at_rate(rate, turns)


def _conversations() -> Mapping[str, Conversations]:
    return {each.name: each for each in (CHAT, AGENTS)}


def _shared_prefixes() -> Mapping[str, SharedPrefix]:
    ours = {each.name: each for each in (DOCUMENTS, FEW_SHOT, PARALLEL_SAMPLES)}
    ours |= {each.name: each for each in (SHAREGPT, HUMANEVAL, LONGBENCH)}
    return ours | {name: preble(name) for name in TABLE}


def _turns(name: str, rate: float, num_requests: int, rng: random.Random) -> Iterator[Turn]:
    if name in (conversations := _conversations()):
        return _underway(conversations[name], rate, num_requests, rng)
    if name in (prefixes := _shared_prefixes()):
        shared = prefixes[name]
        return shared.turns(poisson(rate / shared.num_samples).times(rng), rng=rng)
    if name == "demo":
        return Demo().turns(poisson(rate).times(rng), rng=rng)
    if name == "hot-prefix":
        return _hot_prefix(rate, rng)
    return _robots(rate, num_requests, rng)


def _underway(
    chosen: Conversations, rate: float, num_requests: int, rng: random.Random
) -> Iterator[Turn]:
    starts = poisson(rate / _mean_turns(chosen)).times(rng)
    return underway(
        chosen.turns(starts, rng=rng),
        since=UNDERWAY_SECONDS,
        num_turns=num_requests,
        seconds_per_token=SECONDS_PER_TOKEN,
    )


def _mean_turns(conversations: Conversations) -> float:
    """Found by drawing, because numbers of turns are rounded and never below 1."""
    rng = random.Random(0)
    return sum(num_tokens(conversations.num_turns, rng) for _ in range(NUM_DRAWS)) / NUM_DRAWS


def _hot_prefix(rate: float, rng: random.Random) -> Iterator[Turn]:
    """The three classes in their usual proportion."""
    workload = HotPrefix()
    usual = sum(piece.start for c in workload.classes for piece in c.profile.pieces(rng))
    return faster(rate / usual, workload.turns(rng=rng))


def _robots(rate: float, num_requests: int, rng: random.Random) -> Iterator[Turn]:
    """As many robots as send about the usual number of frames a second each, out of step."""
    num_robots = max(1, round(rate / Robots().frames_per_second))
    robots = replace(
        Robots(),
        frames_per_second=rate / num_robots,
        num_frames=math.ceil(num_requests / num_robots),
    )
    return robots.turns([number / rate for number in range(num_robots)], rng=rng)


def _at_rate(rate: float, turns: Sequence[Turn]) -> list[Turn]:
    """The same with other gaps between arrivals, all by one factor."""
    seconds = turns[-1].arrival_time - turns[0].arrival_time
    return list(faster(rate * seconds / (len(turns) - 1), turns)) if seconds else list(turns)
