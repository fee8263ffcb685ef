"""Prefill and decode workers that speak each dialect, on real sockets.

What vLLM's answers look like was recorded from vLLM 0.32 with its NIXL connector.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fake_worker import SSE_HEAD, FakeWorker, Received, Script, chunk, gateway_before, until

from expediter.config import DisaggregationConfig
from expediter.gateway.gateway import Gateway
from expediter.load import WorkerRole

ALWAYS = DisaggregationConfig(split="always", min_uncached_tokens=0)
PROMPT = " ".join(f"word{i}" for i in range(40))
BODY = json.dumps({"prompt": PROMPT, "max_tokens": 8, "stream": True}).encode()
OFFERED = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "5be7d8e4-9f3c-4f5a-9a7e-1d5f0a5f6c11",
    "remote_request_id": "cmpl-1-0-a8f2",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 64,
    "remote_blocks_expiry_time": 1234.5,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
TOKENS = (b'data: {"choices":[{"text":" a"}]}\n\n', b'data: {"choices":[{"text":" b"}]}\n\n')
DONE = b"data: [DONE]\n\n"


def answer(fields: dict[str, object], *, status: bytes = b"200 OK") -> bytes:
    body = json.dumps(fields).encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def vllm_prefill(params: object = OFFERED) -> Script:
    """What vLLM answers to a prefill leg: an ordinary answer, and the blocks."""
    fields = {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [{"index": 0, "text": " a", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 64, "completion_tokens": 1, "total_tokens": 65}
        | {"prompt_tokens_details": {"cached_tokens": 32}},
        "kv_transfer_params": params,
    }

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(fields))

    return script


def stream(*more: bytes) -> Script:
    """A stream of tokens."""

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(map(chunk, (*TOKENS, *more, DONE))) + b"0\r\n\r\n")

    return script


STREAMED = b"".join((*TOKENS, DONE))


class PrefillWorker(FakeWorker):
    role = WorkerRole.PREFILL


class DecodeWorker(FakeWorker):
    role = WorkerRole.DECODE


def expediter_source(worker: FakeWorker) -> FakeWorker:
    """Make it say that it is one of ours."""
    source = {"engine_id": f"engine-{worker.name}", "host": "0.0.0.0", "port": 7001}
    worker.pages["/kv_transfer_source"] = json.dumps(source).encode()
    return worker


def sglang(worker: FakeWorker) -> FakeWorker:
    """Make it say that it is SGLang's."""
    mode = "prefill" if worker.role is WorkerRole.PREFILL else "decode"
    info = {"disaggregation_mode": mode, "disaggregation_bootstrap_port": 9001}
    worker.pages["/server_info"] = json.dumps(info).encode()
    return worker


def fields_of(request: Received) -> dict[str, object]:
    return json.loads(request.body)


@asynccontextmanager
async def pools(
    prefill: FakeWorker, decode: FakeWorker, *others: FakeWorker, **settings: object
) -> AsyncIterator[Gateway]:
    """A gateway before workers with roles, all of them started."""
    settings.setdefault("disaggregation", ALWAYS)
    async with gateway_before(prefill, decode, *others, **settings) as gateway:
        yield gateway


BROKEN = answer({"error": {"message": "boom"}}, status=b"500 Internal Server Error")
REFUSED = answer({"error": {"message": "too long"}}, status=b"400 Bad Request")


def says(raw: bytes) -> Script:
    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return script


async def silent(_: Received, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


def transfer_id(request: Received) -> str:
    return json.loads(request.body)["kv_transfer_params"]["transfer_id"]


async def nothing_is_left(gateway: Gateway) -> None:
    work, members = gateway.dispatcher.work, gateway.membership.members
    await until(lambda: not any(map(work.num_requests, members)))
    assert all(member.num_in_flight == 0 for member in members.values())
    assert not gateway.dispatcher._pairs._policy._prefilling
