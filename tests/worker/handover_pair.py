"""Two workers on hash models whose stores are real pools, so that what one computed moves."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from hash_engine import BLOCK_SIZE, HashModel, until
from live_server import Live, live_server

from expediter.clock import Clock
from expediter.config import KVCacheConfig, WorkerConfig
from expediter.errors import TransferError
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.transfer.layout import KVIdentity, KVLayout
from expediter.transfer.memory import PoolMemory
from expediter.transfer.messages import EngineId
from expediter.transfer.shared_memory import SharedMemoryTransport
from expediter.worker.handover.live import LiveHandover
from expediter.worker.handover.opening import open_handover
from expediter.worker.handover.pools import Pools
from expediter.worker.handover.terms import Terms

NUM_LAYERS = 3
CONFIG = WorkerConfig(port=0, kv_cache=KVCacheConfig(block_size=BLOCK_SIZE), shutdown_seconds=0.5)
JUNK = -1


class PoolStore:
    """Slot to state, kept in every layer and twice; layers that disagree hold junk."""

    def __init__(self, memory: PoolMemory, layout: KVLayout) -> None:
        self._block_size = layout.block_size
        pool = memory.array.view(np.int64).reshape(layout.shape)
        self._slots = pool[:, :, :, 0, :, 0]  # [block, layer, key or value, slot]

    def __getitem__(self, slot: int) -> int:
        block, offset = divmod(slot, self._block_size)
        copies = set(self._slots[block, ..., offset].ravel().tolist())
        return int(copies.pop()) if len(copies) == 1 else JUNK

    def __setitem__(self, slot: int, state: int) -> None:
        block, offset = divmod(slot, self._block_size)
        self._slots[block, ..., offset] = state

    def write(self, layer: int, states: dict[int, int]) -> None:
        for slot, state in states.items():
            block, offset = divmod(slot, self._block_size)
            self._slots[block, layer, :, offset] = state

    def clear(self) -> None:
        del self._slots


class PooledModel(HashModel):
    """Writes its store layer by layer, and waits between them while `may_write` is unset."""

    def __init__(self, num_blocks: int, *, model: str = "hash") -> None:
        super().__init__()
        self.layout = KVLayout(
            num_layers=NUM_LAYERS,
            num_kv_heads=1,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            head_size=1,
            dtype="int64",
            element_bytes=8,
            identity=KVIdentity(model=model),
        )
        self.memory = PoolMemory.create(self.layout.num_bytes)
        self.pool = PoolStore(self.memory, self.layout)
        self.may_write = asyncio.Event()
        self.may_write.set()
        self._listener: Callable[[int], None] | None = None

    def watch_layers(self, listener: Callable[[int], None] | None) -> None:
        self._listener = listener

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        self.steps.append(output)
        await asyncio.sleep(0)
        await self.may_run.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.store = _Overlay(self.pool)  # type: ignore[assignment]
        for chunk in output.chunks:
            self._compute(chunk)
        written = self.store.written  # type: ignore[attr-defined]
        for layer in range(NUM_LAYERS):
            self.pool.write(layer, written)
            if self._listener is not None:
                self._listener(layer + 1)
            await asyncio.sleep(0)
            await self.may_write.wait()
        return ModelOutput(
            tokens={c.request_id: [self._sample(c)] for c in output.chunks if c.samples}
        )


class _Overlay:
    """A step's own states before those in the pool."""

    def __init__(self, pool: PoolStore) -> None:
        self.pool = pool
        self.written: dict[int, int] = {}

    def __getitem__(self, slot: int) -> int:
        return self.written[slot] if slot in self.written else self.pool[slot]

    def __setitem__(self, slot: int, state: int) -> None:
        self.written[slot] = state


class Hand:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowTransport(SharedMemoryTransport):
    """Copies while `may_pull` is set, as often as it is good; counts."""

    def __init__(self, memory: PoolMemory, layout: KVLayout) -> None:
        super().__init__(memory, layout)
        self.may_pull = asyncio.Event()
        self.may_pull.set()
        self.num_waiting = 0
        self.num_bytes = 0
        self.num_good_pulls = 1_000_000

    async def pull(self, peer: Any, slices: Any) -> None:
        self.num_waiting += 1
        try:
            await self.may_pull.wait()
        finally:
            self.num_waiting -= 1
        self.num_good_pulls -= 1
        if self.num_good_pulls < 0:
            raise TransferError("the wire broke")
        await super().pull(peer, slices)
        self.num_bytes += sum(piece.total_bytes for piece in slices)


@dataclass
class Side:
    """One worker of two."""

    live: Live
    model: PooledModel
    handover: LiveHandover
    transport: SlowTransport

    @property
    def num_used_blocks(self) -> int:
        return self.live.rig.num_used_blocks

    @property
    def failures(self) -> dict[str, int]:
        return dict(self.handover.stats.failures)

    async def until_idle(self) -> None:
        """Until nothing runs here and nothing is held for others."""
        async with asyncio.timeout(10):
            await until(lambda: not self.live.rig.worker.scheduler.has_work)
            await self.handover.drained()
        assert self.num_used_blocks == 0
        assert self.handover.num_leased_blocks == 0


@asynccontextmanager
async def side(
    name: str,
    *,
    num_blocks: int = 256,
    clock: Clock = time.monotonic,
    lease_seconds: float = 30.0,
    identity: str = "hash",
    **options: Any,
) -> AsyncIterator[Side]:
    """A worker that can hand over, until the block ends."""
    model = PooledModel(num_blocks, model=identity)
    transport = SlowTransport(model.memory, model.layout)
    terms = Terms(
        engine_id=EngineId(f"{name}-{uuid.uuid4().hex}"),
        host="127.0.0.1",
        lease_seconds=lease_seconds,
    )
    async with (
        open_handover(
            terms,
            pools=Pools([[transport]]),
            clock=clock,
            wall_clock=time.time,
            watch_layers=model.watch_layers,
        ) as handover,
        live_server(
            model, config=CONFIG, handover=handover, num_blocks=num_blocks, **options
        ) as live,
    ):
        try:
            yield Side(live, model, handover, transport)
        finally:
            model.may_write.set()
            transport.may_pull.set()
    await transport.close()
    model.pool.clear()
    model.memory.close()


@dataclass
class Pair:
    """A prefill and a decode worker, and what a gateway does with them."""

    prefill: Side
    decode: Side
    path: str = "/v1/completions"
    legs: list[Any] = field(default_factory=list)

    async def both_idle(self) -> None:
        await self.prefill.until_idle()
        await self.decode.until_idle()

    def body(self, prompt: object, **fields: Any) -> dict[str, Any]:
        return {"model": "hash", "prompt": prompt, "temperature": 0, **fields}

    async def prefill_leg(self, prompt: object, *, name: str = "", **fields: Any) -> dict[str, Any]:
        """The answer of the first leg; `name` is the gateway's for the transfer."""
        params: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
        if name:
            params["transfer_id"] = name
        fields = {k: v for k, v in fields.items() if k not in ("n", "stream", "stream_options")}
        fields |= {"max_tokens": 1, "kv_transfer_params": params}
        body = self.body(prompt, **fields)
        response = await self.prefill.live.http.post(self.path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def prefill_leg_status(self, prompt: object, *, name: str) -> int:
        """The same, if it may fail."""
        params = {"do_remote_decode": True, "transfer_id": name}
        body = self.body(prompt, max_tokens=1, kv_transfer_params=params)
        return (await self.prefill.live.http.post(self.path, json=body)).status_code

    async def source(self) -> dict[str, Any]:
        response = await self.prefill.live.http.get("/kv_transfer_source")
        found: dict[str, Any] = response.json()
        return found

    async def params(self, name: str) -> dict[str, Any]:
        """What the decode leg gets when it is sent first."""
        source = await self.source()
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": name,
            "remote_engine_id": source["engine_id"],
            "remote_host": source["host"],
            "remote_port": source["port"],
        }

    async def decode_leg(self, prompt: object, params: Any, **fields: Any) -> dict[str, Any]:
        body = self.body(prompt, kv_transfer_params=params, **fields)
        response = await self.decode.live.http.post(self.path, json=body)
        assert response.status_code == 200, response.text
        return cast("dict[str, Any]", response.json())

    async def serial(self, prompt: object, **fields: Any) -> dict[str, Any]:
        """vLLM's way: the decode leg after the answer to the first."""
        first = await self.prefill_leg(prompt, **fields)
        return await self.decode_leg(prompt, first["kv_transfer_params"], **fields)

    async def concurrent(self, prompt: object, **fields: Any) -> dict[str, Any]:
        """Ours: both at once."""
        name = uuid.uuid4().hex
        params = await self.params(name)
        async with asyncio.TaskGroup() as tasks:
            decode = tasks.create_task(self.decode_leg(prompt, params, **fields))
            tasks.create_task(self.prefill_leg(prompt, name=name, **fields))
        return decode.result()


@asynccontextmanager
async def pair(
    *, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None
) -> AsyncIterator[Pair]:
    """Both workers in this process, each with its own pool; options by side."""
    async with (
        side("prefill", **(prefill or {})) as first,
        side("decode", **(decode or {})) as second,
    ):
        yield Pair(first, second)
