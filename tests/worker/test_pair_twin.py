"""Pairs of real workers on loopback, and their simulation: the same placements, one by one.

As `test_loopback_twin`, with two workers that prefill and two that decode: real HTTP, real KV
events, real hand-overs of a real pool; only the model takes the time that a cost model says.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import httpx
import pytest
from handover_pair import CONFIG, PooledModel, SlowTransport
from hash_engine import BLOCK_SIZE, byte_tokenizer
from live_server import MODEL, live_server
from test_loopback_twin import (
    COST,
    MAX_BATCHED_TOKENS,
    MAX_MODEL_LEN,
    NUM_ATTEMPTS,
    NUM_BLOCKS,
    UNCERTAINTY,
    PacedModel,
    note_lags,
    policy,
    robust_workload,
    token_ids,
)

from expediter.config import (
    DisaggregationConfig,
    GatewayConfig,
    KVCacheConfig,
    RoutingConfig,
    SchedulerConfig,
    WorkerEndpoint,
)
from expediter.gateway.gateway import Gateway
from expediter.load import WorkerRole
from expediter.simulation.client import Network
from expediter.simulation.experiment import simulate
from expediter.simulation.fabric import Fabric
from expediter.simulation.fleet import FleetModel
from expediter.simulation.links import GB, Interconnect
from expediter.simulation.worker import WorkerModel
from expediter.transfer.messages import EngineId
from expediter.worker.handover.opening import open_handover
from expediter.worker.handover.pools import Pools
from expediter.worker.handover.terms import Terms
from expediter.worker.publisher import KVEventPublisher
from expediter.workload.replay import replay
from expediter.workload.turn import Turn

ROLES = (WorkerRole.PREFILL, WorkerRole.PREFILL, WorkerRole.DECODE, WorkerRole.DECODE)
SPLIT = DisaggregationConfig(split="always", min_uncached_tokens=48)
LOOPBACK = Fabric(interconnect=Interconnect(nic_bandwidth=GB), kv_bytes_per_token=48)


@dataclass(frozen=True)
class Seen:
    """A request's placement, and how long it took."""

    worker_id: str | None
    prefill_worker_id: str | None
    reason: str
    ttft: float
    total: float

    @property
    def decision(self) -> tuple[object, ...]:
        return self.worker_id, self.prefill_worker_id, self.reason


class PacedPool(PacedModel, PooledModel):
    """Takes its time, and keeps its store in a real pool."""


def simulated(turns: Sequence[Turn], network: Network | None = None) -> list[Seen]:
    model = FleetModel(
        num_workers=len(ROLES),
        num_prefill=ROLES.count(WorkerRole.PREFILL),
        num_decode=ROLES.count(WorkerRole.DECODE),
        worker=WorkerModel(
            cost=COST,
            kv_tokens=NUM_BLOCKS * BLOCK_SIZE,
            kv_cache=KVCacheConfig(block_size=BLOCK_SIZE),
            scheduler=SchedulerConfig(max_batched_tokens=MAX_BATCHED_TOKENS),
            max_model_len=MAX_MODEL_LEN,
        ),
        routing=RoutingConfig(block_size=BLOCK_SIZE),
        network=network or Network(),
        fabric=LOOPBACK,
        disaggregation=SPLIT,
    )
    seen = []
    for answer in simulate(model, turns, policy=policy, name="twin").answers:
        assert answer.is_complete
        assert answer.first_token_at is not None
        assert answer.finished_at is not None
        seen.append(
            Seen(
                answer.worker_id,
                answer.prefill_worker_id,
                answer.reason,
                answer.first_token_at - answer.arrived_at,
                answer.finished_at - answer.arrived_at,
            )
        )
    return seen


@asynccontextmanager
async def live_worker(number: int, role: WorkerRole) -> AsyncIterator[WorkerEndpoint]:
    """One that hands over and publishes what it caches."""
    model = PacedPool(NUM_BLOCKS)
    transport = SlowTransport(model.memory, model.layout)
    publisher = KVEventPublisher("tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*")
    terms = Terms(engine_id=EngineId(f"twin-{number}"), host="127.0.0.1", role=role)
    async with (
        open_handover(
            terms,
            pools=Pools([[transport]]),
            clock=time.monotonic,
            wall_clock=time.time,
            watch_layers=model.watch_layers,
        ) as handover,
        live_server(
            model,
            config=CONFIG,
            publisher=publisher,
            handover=handover,
            num_blocks=NUM_BLOCKS,
            max_batched_tokens=MAX_BATCHED_TOKENS,
            max_model_len=MAX_MODEL_LEN,
        ) as live,
    ):
        yield WorkerEndpoint(
            url=f"http://127.0.0.1:{live.port}",
            worker_id=f"worker-{number}",
            role=role,
            kv_events=publisher.endpoint,
            kv_replay=publisher.replay_endpoint,
        )
    await transport.close()
    model.pool.clear()
    model.memory.close()


@asynccontextmanager
async def live_gateway() -> AsyncIterator[Gateway]:
    """Before real workers; all in this process."""
    async with AsyncExitStack() as stack:
        endpoints = [
            await stack.enter_async_context(live_worker(number, role))
            for number, role in enumerate(ROLES)
        ]
        gateway = Gateway(
            GatewayConfig(
                port=0,
                workers=tuple(endpoints),
                health_interval_seconds=0.2,
                disaggregation=SPLIT,
            ),
            policy=policy(),
            tokenizer=byte_tokenizer(),
        )
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        async with asyncio.timeout(20):
            while len(gateway.membership.ready()) < len(ROLES):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield gateway


async def ask(client: httpx.AsyncClient, seen: dict[float, Seen], turn: Turn) -> None:
    """Send one turn, and note what the headers say and when tokens come."""
    body = {
        "model": MODEL,
        "prompt": token_ids(turn.prompt),
        "max_tokens": turn.num_output_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    started, first = asyncio.get_running_loop().time(), 0.0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            first = first or asyncio.get_running_loop().time()
    headers = response.headers
    seen[turn.arrival_time] = Seen(
        headers["x-expediter-worker"],
        headers.get("x-expediter-prefill-worker"),
        headers["x-expediter-reason"],
        first - started,
        asyncio.get_running_loop().time() - started,
    )


async def on_loopback(turns: Sequence[Turn]) -> list[Seen] | None:
    """What happened there; None if this machine was too busy to be on time."""
    seen: dict[float, Seen] = {}
    lags = [0.0]
    async with live_gateway() as gateway:
        url = f"http://127.0.0.1:{gateway.port}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            watch = asyncio.create_task(note_lags(lags))
            await replay(turns, partial(ask, client, seen))
            watch.cancel()
    return [seen[turn.arrival_time] for turn in turns] if max(lags) < UNCERTAINTY / 3 else None


async def test_live_pairs_and_their_simulation_place_every_request_alike() -> None:
    turns = await asyncio.to_thread(robust_workload, simulated, seed=11)
    expected = await asyncio.to_thread(simulated, turns)
    # Enough happens: prompts that are split and prompts that are not, and every worker at work.
    assert {seen.reason for seen in expected} == {"split", "short-prompt"}
    assert {seen.worker_id for seen in expected} == {"worker-2", "worker-3"}
    assert {seen.prefill_worker_id for seen in expected} == {None, "worker-0", "worker-1"}
    for _ in range(NUM_ATTEMPTS):
        found = await on_loopback(turns)
        if found is not None:
            break
    else:
        pytest.skip("other programs keep this machine too busy to answer in time")
    assert [seen.decision for seen in found] == [seen.decision for seen in expected]
    for of in (attrgetter("ttft"), attrgetter("total")):
        ratios = [of(live) / of(twin) for live, twin in zip(found, expected, strict=True)]
        assert 0.9 < statistics.median(ratios) < 1.3
