"""Two real vLLMs on the CPU, one for prefill and one for decode, behind the gateway.

Skipped unless EXPEDITER_VLLM names the Python of an environment that has vLLM and nixl, and
EXPEDITER_VLLM_MODEL a folder that benchmarks/export_hf.py has written. It takes two minutes, most
of it vLLM's start, and 5 GB.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from process_fleet import ProcessOnPort, eventually, free_port, gateway_process

from expediter.config import environment

MODEL = "smol"
START_SECONDS = 300
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "UCX_TLS": "tcp,sm,self",
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
}
PROMPTS = [
    f"Chapter {n}. " + "The river runs by the old stone bridge, and the lamp is never out. " * n
    for n in (8, 16, 24)
]


@pytest.fixture
def model() -> Path:
    folder, python = environment().get("EXPEDITER_VLLM_MODEL"), environment().get("EXPEDITER_VLLM")
    if not python or not folder:
        pytest.skip("EXPEDITER_VLLM and EXPEDITER_VLLM_MODEL name no vLLM and no model")
    if subprocess.run([python, "-c", "import nixl"], capture_output=True, check=False).returncode:
        pytest.skip("the environment of EXPEDITER_VLLM has no nixl")
    return Path(folder)


@asynccontextmanager
async def vllm(model: Path, folder: Path, *, role: str) -> AsyncIterator[ProcessOnPort]:
    port, side_channel = free_port(), free_port()
    program = Path(environment()["EXPEDITER_VLLM"]).with_name("vllm")
    transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
    command = [str(program), "serve", str(model), "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048"]
    command += ["--enforce-eager", "--block-size", "32", "--kv-cache-memory-bytes", "128M"]
    command += ["--dtype", "float32", "--enable-prompt-tokens-details"]
    command += ["--kv-transfer-config", json.dumps(transfer)]
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ENVIRONMENT
    variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(side_channel)
    with (folder / f"{role}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables)  # noqa: ASYNC220
    server = ProcessOnPort(process, port)
    try:
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


async def test_two_vllms_answer_as_one(model: Path, tmp_path: Path) -> None:
    """Greedy texts through a pair are those of one worker alone; the decode worker fetched KV."""
    async with (
        vllm(model, tmp_path, role="kv_producer") as prefill,
        vllm(model, tmp_path, role="kv_consumer") as decode,
    ):
        for server in (prefill, decode):
            await eventually(lambda s=server: is_up(s), seconds=START_SECONDS, pause=0.5)
        roles = (f"--prefill={prefill.url}", f"--decode={decode.url}")
        settings = {"disaggregation__split": '"always"', "disaggregation__min_uncached_tokens": 0}
        async with (
            gateway_process(tmp_path, options=roles, num_ready=2, **settings) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=120) as http,
            httpx.AsyncClient(base_url=prefill.url, timeout=120) as alone,
        ):
            answers = [await ask(http, prompt) for prompt in PROMPTS]
            for answer, prompt in zip(answers, PROMPTS, strict=True):
                assert answer.headers["x-expediter-prefill-worker"] == f"127.0.0.1:{prefill.port}"
                assert "x-expediter-fallback" not in answer.headers
                assert text(answer) == text(await ask(alone, prompt))
            await streams_too(http, PROMPTS[0], expected=text(answers[0]))
            fetched = await transferred_tokens(decode)
            assert fetched >= sum(a.json()["usage"]["prompt_tokens"] // 32 * 32 for a in answers)


async def ask(http: httpx.AsyncClient, prompt: str) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def streams_too(http: httpx.AsyncClient, prompt: str, *, expected: str) -> None:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": True}
    answer = await http.post("/v1/completions", json=body)
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == expected


async def transferred_tokens(server: ProcessOnPort) -> float:
    """Prompt tokens that vLLM says it got from another worker."""
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{server.url}/metrics")).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith("vllm:prompt_tokens_by_source_total") and "external_kv_transfer" in line
    )


def text(answer: httpx.Response) -> str:
    return answer.json()["choices"][0]["text"]
