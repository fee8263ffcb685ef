"""What may be deployed, and how it serves a workload: instances that do both stages, or one each.

An instance is one copy of the model over `tp` x `pp` GPUs. With pipeline stages it works on `pp`
batches at once, each on its own part of the KV cache, so it is `pp` workers in a simulation.

Two pools are simulated one after the other: the prefill pool with answers of one token, then the
decode pool, which gets each request when its prefill is over and its KV has arrived. That is what
DistServe's placement does (Algorithms 1 and 2, OSDI'24), and what happens as long as the decode
pool has room.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from msgspec.structs import replace

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.routing.policy import LeastLoaded, RoutingPolicy
from expediter.scheduling.output import StepWork
from expediter.simulation.costs import CostModel
from expediter.simulation.experiment import simulate
from expediter.simulation.fleet import FleetModel
from expediter.simulation.worker import WorkerModel
from expediter.workload.transcript import Transcript
from expediter.workload.turn import Turn

MakePolicy = Callable[[random.Random], RoutingPolicy]

UNLIMITED = 1 << 30
"""Tokens of a step that does nothing but take in KV that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one request got, in seconds; infinite if it was lost. A single token has no TPOT."""

    label: str
    ttft: float
    tpot: float
    e2e: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One copy of the model; `cost` is of a whole pass, `kv_tokens` its cache."""

    tp: int
    pp: int = 1
    cost: CostModel
    kv_tokens: int

    @property
    def num_gpus(self) -> int:
        """GPUs it takes."""
        return self.tp * self.pp

    @property
    def shape(self) -> str:
        """As tables name it."""
        return f"TP{self.tp}" if self.pp == 1 else f"TP{self.tp}xPP{self.pp}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal instances, and how they schedule."""

    instance: Instance
    num_instances: int
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    prefix_caching: bool = True

    @property
    def num_gpus(self) -> int:
        """GPUs of all its instances."""
        return self.num_instances * self.instance.num_gpus

    def fleet(self, block_size: int, *, cost: CostModel | None = None) -> FleetModel:
        """As it is simulated; `cost` replaces the instance's."""
        instance = self.instance
        return FleetModel(
            num_workers=self.num_instances * instance.pp,
            worker=WorkerModel(
                cost=cost or instance.cost,
                kv_tokens=instance.kv_tokens // instance.pp,
                num_stages=instance.pp,
                kv_cache=KVCacheConfig(block_size=block_size, prefix_caching=self.prefix_caching),
                scheduler=self.scheduler,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Pools on `num_gpus` GPUs: one that does both stages, or one for each.

    A prompt's KV takes `transfer_seconds` a token from the one to the other.
    """

    prefill: Pool
    decode: Pool | None = None
    transfer_seconds: float = 0.0
    block_size: int = 256

    @property
    def num_gpus(self) -> int:
        """GPUs of both pools."""
        return self.prefill.num_gpus + (self.decode.num_gpus if self.decode else 0)

    @property
    def name(self) -> str:
        """As tables name it."""
        prefill = f"{self.prefill.num_instances} x {self.prefill.instance.shape}"
        if self.decode is None:
            return prefill
        return f"{prefill} + {self.decode.num_instances} x {self.decode.instance.shape}"


@dataclass(frozen=True, slots=True)
class _TakenIn:
    """A decode worker's passes: the prompt's KV is there, and so is the first token."""

    cost: CostModel

    def seconds(self, work: StepWork) -> float:
        """See `CostModel`."""
        return self.cost.seconds(replace(work, chunks=()))


def least_loaded(rng: random.Random) -> RoutingPolicy:
    """DistServe's: the shortest queue for prefill, the least loaded worker for decode."""
    del rng
    return LeastLoaded()


def serve(
    deployment: Deployment,
    turns: Sequence[Turn],
    *,
    seed: int = 0,
    policy: MakePolicy = least_loaded,
) -> list[Outcome]:
    """One outcome a request, in order of arrival; `policy` places them, and decodes go by load."""
    if deployment.decode is None:
        return _colocated(deployment, turns, seed=seed, policy=policy)
    return _in_two_pools(deployment, deployment.decode, turns, seed=seed, policy=policy)


def _colocated(
    deployment: Deployment, turns: Sequence[Turn], *, seed: int, policy: MakePolicy
) -> list[Outcome]:
    fleet = deployment.prefill.fleet(deployment.block_size)
    run = simulate(fleet, turns, policy=policy, name=deployment.name, seed=seed)
    return [
        _outcome(answer.turn, answer.arrived_at, answer.first_token_at, answer.finished_at)
        for answer in run.answers
    ]


def serve_prefill(
    deployment: Deployment,
    turns: Sequence[Turn],
    *,
    seed: int = 0,
    policy: MakePolicy = least_loaded,
) -> list[Outcome]:
    """The prefill pool alone: nobody waits for a second token."""
    ended = _prefilled(deployment, turns, seed=seed, policy=policy)
    return [
        _outcome(turn, turn.arrival_time, at, at) for turn, at in zip(turns, ended, strict=True)
    ]


def serve_decode(deployment: Deployment, turns: Sequence[Turn], *, seed: int = 0) -> list[Outcome]:
    """The decode pool alone: every prompt's KV and first token are there when it comes."""
    pool = deployment.decode or deployment.prefill
    finished = _decoded(deployment, pool, list(_numbered(turns)), seed=seed)
    return [
        _outcome(turn, turn.arrival_time, turn.arrival_time, finished.get(number))
        for number, turn in enumerate(turns)
    ]


def _in_two_pools(
    deployment: Deployment, decode: Pool, turns: Sequence[Turn], *, seed: int, policy: MakePolicy
) -> list[Outcome]:
    ended = _prefilled(deployment, turns, seed=seed, policy=policy)
    handed_over = [
        replace(turn, arrival_time=at + deployment.transfer_seconds * turn.num_prompt_tokens)
        for turn, at in zip(_numbered(turns), ended, strict=True)
        if at is not None and turn.num_output_tokens > 1
    ]
    handed_over.sort(key=attrgetter("arrival_time"))
    finished = _decoded(deployment, decode, handed_over, seed=seed)
    return [
        _outcome(
            turn,
            turn.arrival_time,
            at,
            at if turn.num_output_tokens == 1 else finished.get(number),
        )
        for number, (turn, at) in enumerate(zip(turns, ended, strict=True))
    ]


def _numbered(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Each by itself, known by its number."""
    for number, turn in enumerate(turns):
        yield replace(turn, session=str(number), think_time=None)


def _prefilled(
    deployment: Deployment, turns: Sequence[Turn], *, seed: int, policy: MakePolicy
) -> list[float | None]:
    """When each request's first token came, by the workload's clock; None if it never did."""
    alone = [replace(turn, transcript=_with_answer(turn, 1), think_time=None) for turn in turns]
    fleet = deployment.prefill.fleet(deployment.block_size)
    run = simulate(fleet, alone, policy=policy, name=deployment.name, seed=seed)
    at = {
        id(answer.turn): answer.first_token_at - answer.arrived_at + answer.turn.arrival_time
        for answer in run.answers
        if answer.first_token_at is not None
    }
    return [at.get(id(turn)) for turn in alone]


def _decoded(
    deployment: Deployment, decode: Pool, turns: Sequence[Turn], *, seed: int
) -> dict[int, float]:
    """When each answer ended, by its number."""
    pool = dataclasses.replace(
        decode,
        scheduler=replace(decode.scheduler, max_batched_tokens=UNLIMITED),
        prefix_caching=False,
    )
    fleet = pool.fleet(deployment.block_size, cost=_TakenIn(decode.instance.cost))
    run = simulate(fleet, turns, policy=least_loaded, name=deployment.name, seed=seed)
    return {
        int(answer.turn.session or 0): answer.finished_at
        - answer.arrived_at
        + answer.turn.arrival_time
        for answer in run.answers
        if answer.finished_at is not None
    }


def _with_answer(turn: Turn, num_tokens: int) -> Transcript:
    """The turn's prompt with an answer of another length."""
    answer = turn.transcript.segment
    return turn.prompt.then(answer.name, num_tokens, role=answer.role)


def _outcome(
    turn: Turn, arrived_at: float, first_at: float | None, finished_at: float | None
) -> Outcome:
    lost = float("inf")
    if first_at is None or finished_at is None:
        return Outcome(label=turn.label, ttft=lost, tpot=lost, e2e=lost)
    gaps = turn.num_output_tokens - 1
    tpot = (finished_at - first_at) / gaps if gaps else 0.0
    return Outcome(
        label=turn.label,
        ttft=first_at - arrived_at,
        tpot=tpot,
        e2e=finished_at - arrived_at,
    )
