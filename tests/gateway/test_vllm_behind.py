"""A real vLLM on the CPU behind the gateway, unchanged.

Skipped unless EXPEDITER_VLLM names the Python of an environment that has vLLM, and
EXPEDITER_VLLM_MODEL a folder that benchmarks/export_hf.py has written. It takes about a minute,
most of it vLLM's start, and 2.5 GB.
"""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from process_fleet import (
    ProcessOnPort,
    eventually,
    free_port,
    gateway_process,
    worker_process,
)

from expediter.config import environment
from expediter.gateway.openai import CHAT, read_fields
from expediter.gateway.prompts import PromptReader
from expediter.gateway.tokenizer import PromptTokenizer
from expediter.routing.prompt import pack_tokens
from expediter.tokenizer import load_tokenizer

MODEL = "smol"
BLOCK = 32  # vLLM's blocks on a CPU are multiples of it
START_SECONDS = 300
QUIET = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
LONG = "The river runs by the old stone bridge, and the lamp above it is never out. " * 30
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
    {
        "messages": [
            {"role": "system", "content": "Be brief. Grüße, 你好 👋🏽"},
            {"role": "user", "content": "One\n\n  two <|im_end|> three"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": LONG},
        ]
    },
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "In a list."}]}]},
    {"messages": [{"role": "user", "content": "Is it raining?"}], "tools": [TOOL]},
    {
        "messages": [
            {"role": "user", "content": "Is it raining?"},
            {"role": "assistant", "content": "It is"},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
]


@pytest.fixture(scope="session")
def model() -> Path:
    folder = environment().get("EXPEDITER_VLLM_MODEL")
    if not environment().get("EXPEDITER_VLLM") or not folder:
        pytest.skip("EXPEDITER_VLLM and EXPEDITER_VLLM_MODEL name no vLLM and no model")
    return Path(folder)


@asynccontextmanager
async def vllm_server(model: Path, folder: Path) -> AsyncIterator[ProcessOnPort]:
    port = free_port()
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{folder}/kv.ipc",
        "replay_endpoint": f"tcp://127.0.0.1:{free_port()}",
        "topic": "",
    }
    command = [
        str(vllm_program()),
        "serve",
        str(model),
        "--served-model-name",
        MODEL,
        "--enforce-eager",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096"]
    command += ["--block-size", str(BLOCK), "--kv-cache-memory-bytes", "256M"]
    command += ["--enable-prompt-tokens-details", "--kv-events-config", json.dumps(events)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220
            command, stdout=log, stderr=log, env=vllm_environment()
        )
    server = ProcessOnPort(process, port)
    try:
        await eventually(lambda: is_up(server), seconds=START_SECONDS, pause=0.5)
        yield server
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


async def is_up(server: ProcessOnPort) -> bool:
    assert server.process.poll() is None, "vLLM did not start"
    try:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"{server.url}/health")).status_code == 200
    except httpx.TransportError:
        return False


async def test_vllm_is_served_as_it_is(model: Path, tmp_path: Path) -> None:
    async with (
        vllm_server(model, tmp_path) as vllm,
        gateway_process(
            tmp_path,
            vllm,
            options=("--tokenizer", str(model)),
            health__load_interval_seconds=0.2,
        ) as gateway,
        httpx.AsyncClient(base_url=vllm.url, timeout=120) as direct,
        httpx.AsyncClient(base_url=gateway.url, timeout=120) as http,
    ):
        await tokens_are_those_of_vllm(model, direct, http)
        await events_are_followed(gateway, http)
        await load_is_known(gateway, http)
        await errors_and_streams_pass(direct, http)


async def tokens_are_those_of_vllm(
    model: Path, direct: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """Id for id before it is sent, and the count in the gateway's own record afterwards."""
    with ThreadPoolExecutor(max_workers=1) as threads:
        reader = PromptReader(PromptTokenizer(load_tokenizer(model), executor=threads))
        await same_tokens(reader, direct, http)


async def same_tokens(
    reader: PromptReader, direct: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    for chat in CHATS:
        body = {"model": MODEL, "max_tokens": 1, "temperature": 0, **chat}
        told = await direct.post("/tokenize", json={"model": MODEL, **chat})
        assert told.status_code == 200, told.text
        fields = read_fields(json.dumps(body).encode())
        assert fields is not None
        prompt = await reader.read(CHAT, fields, lora_name=None)
        assert prompt is not None
        assert (prompt.is_text, prompt.whole) == (False, pack_tokens(told.json()["tokens"]))
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        decision = (await http.get("/decisions?limit=1")).json()[0]
        assert decision["num_tokens"] == answer.json()["usage"]["prompt_tokens"]
        assert decision["num_tokens"] == told.json()["count"]


async def events_are_followed(gateway: ProcessOnPort, http: httpx.AsyncClient) -> None:
    """What the gateway predicts of every turn is what vLLM then says it had."""
    messages = [{"role": "user", "content": f"Once more: {LONG}"}]
    for turn in range(3):
        before = await gateway.metric("expediter_index_blocks", source="events")
        body = {"model": MODEL, "messages": messages, "max_tokens": 40, "temperature": 0}
        answer = await http.post("/v1/chat/completions", json={**body, "ignore_eos": True})
        cached = answer.json()["usage"]["prompt_tokens_details"]
        found = cached["cached_tokens"] if cached else 0
        assert int(answer.headers["x-expediter-matched-tokens"]) == found
        assert (found > 0) == (turn > 0)

        async def has_grown(before: float = before) -> bool:
            return await gateway.metric("expediter_index_blocks", source="events") > before

        await eventually(has_grown)
        messages.append(
            {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}
        )
        messages.append({"role": "user", "content": f"Go on, {turn}. And then, what became of it?"})
    assert await gateway.metric("expediter_worker_actual_cached_tokens_total") > 0


async def load_is_known(gateway: ProcessOnPort, http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 3000, "stream": True}

    async def runs() -> bool:
        worker = (await gateway.fetch("/workers"))[0]
        return bool(worker["num_running"] == 1 and worker["kv_usage"] > 0)

    async def rests() -> bool:
        return bool((await gateway.fetch("/workers"))[0]["num_running"] == 0)

    async with http.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as answer:
        await answer.aiter_lines().__anext__()
        await eventually(runs)
    await eventually(rests)  # its client has left, so vLLM has stopped


async def errors_and_streams_pass(direct: httpx.AsyncClient, http: httpx.AsyncClient) -> None:
    prompt = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0}
    for fields in ({"temperature": -3}, {"model": "another"}, {"max_tokens": "many"}):
        body = prompt | fields
        theirs = await direct.post("/v1/completions", json=body)
        ours = await http.post("/v1/completions", json=body)
        assert 400 <= ours.status_code < 500
        assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())
    body = {**prompt, "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}
    streams = [(await client.post("/v1/completions", json=body)).text for client in (direct, http)]
    ours, theirs = ([text_of(line) for line in text.split("\n\n")] for text in streams)
    assert ours == theirs
    assert streams[1].endswith("data: [DONE]\n\n")


def text_of(event: str) -> object:
    """Of an event only what does not change from one request to the next."""
    data = event.removeprefix("data: ")
    if not data.startswith("{"):
        return data
    return [choice["text"] for choice in json.loads(data)["choices"]]


@pytest.mark.parametrize(
    ("backend", "path"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
async def test_vllms_own_benchmark_runs_against_the_gateway(
    model: Path, tmp_path: Path, backend: str, path: str
) -> None:
    """Before workers on a hash model, which have vLLM's dialect and are faster."""
    command = [str(vllm_program()), "bench", "serve", "--backend", backend, "--endpoint", path]
    command += ["--model", str(model), "--served-model-name", "hash", "--dataset-name", "random"]
    command += ["--random-input-len", "60", "--random-output-len", "12", "--num-prompts", "20"]
    async with (
        worker_process() as a,
        worker_process() as b,
        gateway_process(tmp_path, a, b) as gateway,
    ):
        benchmark = await asyncio.create_subprocess_exec(
            *command,
            *("--ignore-eos", "--disable-tqdm", "--base-url", gateway.url),
            env=vllm_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = (await benchmark.communicate())[0].decode()
        assert re.search(r"Successful requests: +20\b", said), said
        assert re.search(r"Total generated tokens: +240\b", said), said


def vllm_program() -> Path:
    return Path(environment()["EXPEDITER_VLLM"]).with_name("vllm")


def vllm_environment() -> dict[str, str]:
    """Without this process's own packages."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | QUIET
