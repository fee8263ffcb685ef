"""Workers that are killed in the middle of a hand-over, as processes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from handover_pair import Side, side
from hash_engine import until

PROMPT = "abc def gh" * 8
SERVER = Path(__file__).with_name("serve_handover_worker.py")
PATH = "/v1/completions"


@dataclass
class Process:
    """Another worker, which may be killed."""

    http: httpx.AsyncClient
    kill: Callable[[], None]

    async def post(self, **params: Any) -> httpx.Response:
        body = {"prompt": PROMPT, "temperature": 0, "kv_transfer_params": params}
        wanted = {"max_tokens": 1 if params.get("do_remote_decode") else 6}
        return await self.http.post(PATH, json=body | wanted)


@asynccontextmanager
async def process(
    name: str, *, lease_seconds: float = 30.0, waits_for: str = ""
) -> AsyncIterator[Process]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SERVER), name, str(lease_seconds), waits_for),
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    port = int(await child.stdout.readline())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
            yield Process(http, child.kill)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def reading(other: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """What tells a decode worker to get KV from `other`."""
    source = (await other.get("/kv_transfer_source")).json()
    return {
        "do_remote_prefill": True,
        "transfer_id": name,
        "remote_engine_id": source["engine_id"],
        "remote_host": source["host"],
        "remote_port": source["port"],
    }


async def decode(worker: Side, params: dict[str, Any]) -> dict[str, Any]:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 6, "kv_transfer_params": params}
    answer: dict[str, Any] = (await worker.live.http.post(PATH, json=body)).json()
    return answer


def check(worker: Side, answer: dict[str, Any], failure: str | None) -> None:
    assert answer["choices"][0]["text"] == worker.model.expected(PROMPT.encode(), 6).decode()
    assert answer["kv_transfer"]["failure"] == failure


async def test_a_prefill_worker_that_dies_before_it_began() -> None:
    async with process("prefill") as prefill, side("decode") as worker:
        params = await reading(prefill.http, "t")
        leg = asyncio.create_task(decode(worker, params))
        await until(lambda: worker.handover.num_incoming == 1 and worker.num_used_blocks > 0)
        prefill.kill()
        answer = await leg
        assert answer["kv_transfer"]["failure"] in ("connection_lost", "unreachable")
        check(worker, answer, answer["kv_transfer"]["failure"])
        await worker.until_idle()


async def test_a_prefill_worker_that_dies_while_it_computes() -> None:
    async with process("prefill", waits_for="layer") as prefill, side("decode") as worker:
        params = await reading(prefill.http, "t")
        leg = asyncio.create_task(decode(worker, params))
        first = asyncio.create_task(prefill.post(do_remote_decode=True, transfer_id="t"))
        await until(lambda: worker.transport.num_bytes > 0)
        prefill.kill()
        answer = await leg
        check(worker, answer, "connection_lost")
        assert answer["kv_transfer"]["tokens"] == 0, "one layer of three is no token's KV"
        await asyncio.wait([first])
        assert first.exception() is not None
        await worker.until_idle()


async def test_a_prefill_worker_that_dies_during_the_transfer_was_heard_to_the_end() -> None:
    """Its pool stays mapped and its lease holds, so nothing need be computed again."""
    async with process("prefill") as prefill, side("decode") as worker:
        worker.transport.may_pull.clear()
        first = (await prefill.post(do_remote_decode=True)).json()["kv_transfer_params"]
        leg = asyncio.create_task(decode(worker, first))
        await until(lambda: worker.transport.num_waiting == 1)
        prefill.kill()
        await until(lambda: worker.handover.num_links == 0)
        worker.transport.may_pull.set()
        answer = await leg
        check(worker, answer, None)
        assert answer["kv_transfer"]["tokens"] == len(PROMPT)
        assert worker.model.num_computed_tokens == 5


async def test_a_prefill_worker_that_dies_after_the_transfer_is_not_missed() -> None:
    async with process("prefill") as prefill, side("decode") as worker:
        worker.model.may_run.clear()
        first = (await prefill.post(do_remote_decode=True)).json()["kv_transfer_params"]
        leg = asyncio.create_task(decode(worker, first))
        await until(lambda: bool(worker.model.steps))
        prefill.kill()
        worker.model.may_run.set()
        check(worker, await leg, None)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_decode_worker_that_dies_leaves_no_block_behind(moment: str) -> None:
    """Before it has copied all, its lease runs out; afterwards it had let go."""
    waits_for = "pull" if moment == "before" else ""
    async with (
        side("prefill", lease_seconds=1) as worker,
        process("decode", waits_for=waits_for) as other,
    ):
        params = await reading(worker.live.http, "t")
        leg = asyncio.create_task(other.post(**params))
        await until(lambda: worker.handover.num_outgoing == 1)
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1}
        mine = {"do_remote_decode": True, "transfer_id": "t"}
        answer = await worker.live.http.post(PATH, json=body | {"kv_transfer_params": mine})
        assert answer.status_code == 200
        if moment == "after":
            await until(lambda: worker.handover.num_outgoing == 0)
        other.kill()
        await asyncio.wait([leg])
        await worker.until_idle()
        assert worker.handover.num_expired_leases == (moment == "before")
