"""A worker whose engine is gone says so to its clients, and ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hash_engine import BLOCK_SIZE, Rig, build, until
from live_server import events_of, served_model

from expediter.config import KVCacheConfig, WorkerConfig
from expediter.errors import EngineLost
from expediter.worker.server import create_app, listen, serve

CONFIG = WorkerConfig(port=0, kv_cache=KVCacheConfig(block_size=BLOCK_SIZE))
LOSS = EngineLost("rank 1 of 3 was ended by SIGKILL")
BODY = {"prompt": "x", "max_tokens": 5, "temperature": 0}


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Rig, httpx.AsyncClient]]:
    """A worker that is expected to lose its engine within the block."""
    rig = build()
    app = create_app(rig.worker, config=CONFIG, model=served_model(512), clock=lambda: 0.0)
    listener = listen(CONFIG)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = asyncio.create_task(
        serve(app, listener=listener, worker=rig.worker, shutdown_seconds=5)
    )
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        yield rig, http
        with pytest.raises(EngineLost, match="rank 1 of 3"):
            await server
        assert rig.num_used_blocks == 0
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")


async def test_requests_in_a_step_go_elsewhere() -> None:
    """503 is what a gateway tries another worker for."""
    async with serving() as (rig, http):
        rig.model.failures = [LOSS]
        response = await http.post("/v1/completions", json=BODY)
        assert response.status_code == 503


async def test_a_stream_ends_with_an_error() -> None:
    async with serving() as (rig, http):
        body = {**BODY, "max_tokens": 400, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            rig.model.failures = [LOSS]
            events = events_of("\n".join([first, *[line async for line in lines]]))
        assert events[-1]["error"]["code"] == 503


async def test_one_that_waits_and_one_that_runs_are_told_though_no_step_ends() -> None:
    """A rank's death is noticed while a step hangs, or while there is none."""
    async with serving() as (rig, http):
        rig.model.may_run.clear()
        asked = [asyncio.create_task(http.post("/v1/completions", json=BODY)) for _ in range(2)]
        await until(lambda: rig.worker.load().num_running + rig.worker.load().num_waiting == 2)
        rig.worker.lose_engine(LOSS)
        assert not rig.worker.is_healthy
        assert [(await answer).status_code for answer in asked] == [503, 503]
        rig.model.may_run.set()
