"""Clients that leave, that do not read, and servers that fail or stop under them."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import openai
import pytest
import zmq
import zmq.asyncio
from hash_engine import BLOCK_SIZE, until
from live_server import MODEL, events_of, live_server

from expediter.cluster.kv_events import EventDecoder, block_hash
from expediter.config import KVCacheConfig, WorkerConfig
from expediter.kvcache.events import BlockRemoved, BlockStored
from expediter.worker.publisher import KVEventPublisher
from expediter.worker.worker import MAX_FAILED_STEPS

SECONDS = 20.0


def post(path: str, **body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@asynccontextmanager
async def connected(
    port: int, *, receive_buffer: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=client, limit=4096)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_client_that_leaves_frees_its_blocks_within_one_step(
    path: str, is_streamed: bool
) -> None:
    async with live_server() as live:
        body = {"prompt": "x" * 50, "messages": [{"role": "user", "content": "x"}], "n": 3}
        async with connected(live.port) as (_, writer):
            writer.write(post(path, **body, stream=is_streamed, max_tokens=300))
            await live.until_steps(5)
            live.model.may_run.clear()
        await until(lambda: not live.rig.worker.scheduler.has_work)
        assert live.rig.num_used_blocks == 0
        num_steps = len(live.model.steps)
        live.model.may_run.set()
        answer = await live.complete("next", max_tokens=4)
        assert answer["choices"][0]["text"].encode() == live.model.expected(b"next", 4)
        assert all(len(step.chunks) == 1 for step in live.model.steps[num_steps:])


async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    async with live_server(num_blocks=20, max_model_len=80) as live:
        live.model.may_run.clear()
        first = asyncio.create_task(live.complete("x" * 60, max_tokens=19))
        await live.until_steps(1)
        async with connected(live.port) as (_, writer):
            writer.write(post("/v1/completions", prompt="y" * 60))
            await until(lambda: live.rig.worker.load().num_waiting == 1)
        await until(lambda: live.rig.worker.load().num_waiting == 0)
        live.model.may_run.set()
        await first


async def test_a_client_that_leaves_while_it_sends_is_no_error() -> None:
    async with live_server() as live:
        async with connected(live.port) as (_, writer):
            writer.write(post("/v1/completions", prompt="x" * 1000)[:500])
            await writer.drain()
        await live.complete("fine")


async def test_a_client_that_does_not_read_gets_its_answer_in_larger_pieces() -> None:
    """What waits for it is joined, so it costs no more than the whole answer."""
    num_tokens = 2000  # a choice: 10 MB in all, more than sockets hold
    async with live_server(num_blocks=5000, max_model_len=8000) as live:
        async with connected(live.port, receive_buffer=4096) as (reader, writer):
            body = {"prompt": "x", "max_tokens": num_tokens, "seed": 1, "logprobs": 20, "n": 8}
            writer.write(post("/v1/completions", **body, stream=True))
            await until(lambda: len(live.model.steps) >= num_tokens)
            await until(lambda: not live.rig.worker.scheduler.has_work)
            assert live.rig.num_used_blocks == 0
            received = bytearray()
            async with asyncio.timeout(SECONDS):
                while not received.endswith(b"0\r\n\r\n"):
                    received += await reader.read(1 << 20)
        chunks = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
        pieces = [json.loads(line[6:])["choices"][0] for line in chunks]
        for i in range(8):
            said = "".join(piece["text"] for piece in pieces if piece["index"] == i)
            assert said.encode() == live.model.expected(b"x", num_tokens, seed=1 + i)
        assert sum(len(piece["logprobs"]["tokens"]) for piece in pieces) == 8 * num_tokens
        assert len(pieces) < 8 * num_tokens


async def test_a_failure_before_the_first_token_is_a_500() -> None:
    async with live_server() as live:
        for is_streamed in (False, True):
            live.model.failures = [RuntimeError("no memory")]
            error = await live.error(prompt="x", stream=is_streamed)
            assert (error["code"], error["type"]) == (500, "server_error")
            assert "no memory" not in error["message"]
        await live.until_idle()


async def test_a_failure_in_a_stream_is_an_event_and_no_done_follows() -> None:
    async with live_server() as live:
        body = {"prompt": "x", "stream": True, "max_tokens": 300, "n": 2}
        async with live.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            live.model.failures = [RuntimeError("no memory")]
            text = "\n".join([line async for line in lines])
        *chunks, last = events_of(text)
        assert set(last) == {"error"}
        assert last["error"]["code"] == 500
        assert all(choice["finish_reason"] is None for c in chunks for choice in c["choices"])
        await live.until_idle()
        stream = await live.openai.completions.create(model=MODEL, prompt="x", stream=True)
        live.model.failures = [RuntimeError("no memory")]
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass


async def test_health_follows_the_model() -> None:
    async with live_server() as live:
        live.model.failures = [RuntimeError("broken")] * MAX_FAILED_STEPS
        for _ in range(MAX_FAILED_STEPS):
            assert (await live.http.get("/health")).status_code == 200
            await live.error(prompt="x")
        assert (await live.http.get("/health")).status_code == 503
        await live.complete("x")
        assert (await live.http.get("/health")).status_code == 200


async def test_a_draining_server_finishes_answers_and_turns_others_away() -> None:
    async with live_server() as live:
        live.model.may_run.clear()
        running = asyncio.create_task(live.complete("x", max_tokens=50))
        await live.until_steps(1)
        live.stop.set()
        await until(lambda: live.rig.worker.is_draining)
        refused = await live.http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert (await live.http.get("/health")).status_code == 503
        live.model.may_run.set()
        answer = await running
        assert answer["choices"][0]["text"].encode() == live.model.expected(b"x", 50)


async def test_what_does_not_finish_in_time_is_told() -> None:
    config = WorkerConfig(port=0, shutdown_seconds=0.05, kv_cache=KVCacheConfig(block_size=4))
    async with live_server(config=config) as live:
        body = {"prompt": "x", "max_tokens": 500, "stream": True}
        async with live.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            live.model.may_run.clear()
            waiting = asyncio.create_task(live.error(prompt="y"))
            live.stop.set()
            text = "\n".join([line async for line in lines])
        assert events_of(text)[-1]["error"]["code"] == 503
        assert (await waiting)["code"] == 503


async def test_events_reach_a_listener_that_asks_the_server_where() -> None:
    """A listener that applies every event knows what the cache holds."""
    publisher = KVEventPublisher("tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*")
    async with live_server(num_blocks=30, max_model_len=64, publisher=publisher) as live:
        source = (await live.http.get("/kv_event_sources")).json()["0"]
        assert source["enable_kv_cache_events"] is True
        for i in range(12):
            await live.complete(f"prompt number {i} of twelve", max_tokens=5)
        context = zmq.asyncio.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(source["replay_endpoint"])
        await dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        held: set[bytes] = set()
        while payload := (await dealer.recv_multipart())[3]:
            for event in EventDecoder().decode(payload).events:
                if isinstance(event, BlockStored):
                    assert len(event.token_ids) == BLOCK_SIZE * len(event.block_hashes)
                    held |= {block_hash(name) for name in event.block_hashes}
                elif isinstance(event, BlockRemoved):
                    held -= {block_hash(name) for name in event.block_hashes}
        context.destroy(linger=0)
        assert len(held) == live.rig.worker.scheduler.kv_cache.num_cached_blocks


# A process of its own, and a signal.


@contextmanager
def worker_process(
    folder: Path, *, shutdown_seconds: float
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    script = Path(__file__).parent / "serve_hash_model.py"
    command = [sys.executable, str(script), str(shutdown_seconds), f"ipc://{folder}/events"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_answers_finish_and_exits_with_zero(
    tmp_path: Path, number: signal.Signals
) -> None:
    with worker_process(tmp_path, shutdown_seconds=10) as (process, url):
        body = {"prompt": "x", "max_tokens": 100, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=SECONDS) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(number)
            events = events_of("\n".join([first, *lines]))
        assert events[-1] == "[DONE]"
        said = "".join(event["choices"][0]["text"] for event in events[:-1])
        assert len(said) == 100
        assert process.wait(SECONDS) == 0


def test_after_the_deadline_answers_are_cut_with_an_error(tmp_path: Path) -> None:
    with worker_process(tmp_path, shutdown_seconds=0.2) as (process, url):
        body = {"prompt": "x", "max_tokens": 9000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=SECONDS) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            events = events_of("\n".join([first, *lines]))
        assert events[-1]["error"]["code"] == 503
        assert process.wait(SECONDS) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
