"""`expediter bench` as a person meets it, against a real worker and a real gateway."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from endpoints import hash_worker

SMALL = ["--workload", "chat", "--requests", "12", "--rate", "20", "--scale", "0.05", "--seed", "1"]


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    with hash_worker() as url:
        yield url


@pytest.fixture(scope="module")
def gateway(worker: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "expediter", "serve", "--worker", worker, "--port", f"{port}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(300):
        assert process.poll() is None
        try:
            if httpx.get(f"{url}/v1/models", timeout=5).json()["data"]:
                return
        except (httpx.HTTPError, KeyError):
            pass
        asyncio.run(asyncio.sleep(0.1))
    raise AssertionError("the gateway has no worker")


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "expediter", "bench", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def measured(path: Path, *arguments: str) -> dict[str, Any]:
    run = bench(*arguments, "--json", str(path))
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_worker_is_measured_through_both_apis(api: str, worker: str, tmp_path: Path) -> None:
    found = measured(tmp_path / "a.json", "--url", worker, "--api", api, *SMALL)["report"]
    assert found["model"] == "hash"
    everything = found["classes"][0]
    assert (everything["num_requests"], everything["num_failed"]) == (12, 0)
    assert everything["ttft"]["count"] == 12
    assert everything["output_tokens"] > 12
    assert everything["cached_tokens"] is not None
    assert len(found["requests"]) == 12
    assert all(row["first_at"] >= row["sent_at"] for row in found["requests"])


def test_prompts_are_about_as_long_as_the_workload_says(worker: str, tmp_path: Path) -> None:
    """A token of this worker is a byte, so what it counts depends on the measured rate of words."""
    trace = tmp_path / "trace.jsonl"
    rows = [
        {
            "at": 0.1 * number,
            "prompt": [{"name": f"p{number}", "tokens": 1000}],
            "answer": {"name": f"a{number}", "tokens": 3},
        }
        for number in range(3)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--trace", str(trace), "--format", "workload", "--api", "completions")
    found = measured(tmp_path / "a.json", "--url", worker, *given)["report"]
    for row in found["requests"]:
        assert row["prompt_tokens"] == pytest.approx(1000, rel=0.3)
        assert row["output_tokens"] == 3


def test_a_gateway_says_which_worker_and_how_much_was_cached(gateway: str, tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("a.json", "a.csv", "a.parquet", "a.html")]
    files = [word for path in names[1:] for word in (f"--{path.suffix[1:]}", str(path))]
    found = measured(names[0], "--url", f"{gateway}/v1", *SMALL, *files, "--ttft", "1000")
    (served,) = found["report"]["workers"]
    assert served["num_requests"] == 12
    assert found["report"]["classes"][0]["attainment"]["value"] == 1.0
    assert found["bench"]["url"] == f"{gateway}/v1"
    assert all(path.stat().st_size for path in names)
    assert names[3].read_text().count("<svg") == 1


def test_the_key_comes_from_the_environment_and_is_not_kept(worker: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    run = bench("--url", worker, *SMALL, "--json", str(path), OPENAI_API_KEY="secret-key")
    assert run.returncode == 0
    assert "secret-key" not in path.read_text() + run.stdout


def test_an_endpoint_that_is_not_there_is_one_line_and_status_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        run = bench("--url", f"http://127.0.0.1:{taken.getsockname()[1]}", *SMALL)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("error: nothing answers at http://127.0.0.1:")
    assert run.stderr.count("\n") == 1


def test_an_unknown_model_says_what_the_endpoint_says(worker: str) -> None:
    run = bench("--url", worker, "--model", "gpt", *SMALL)
    assert run.returncode == 1
    assert "a first request failed: 404" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Object missing required field `url`"),
        (("--url", "localhost:1"), "url: Expected `str` matching regex"),
        (("--url", "http://x", "--trace", "a"), "trace and format: one needs the other"),
        (("--url", "http://x", "--rate", "0"), "rate: Expected `float` > 0"),
        (("--url", "http://x", "--workload", "talk"), "no workload is called 'talk'"),
        (("--url", "http://x", "--json", "no/a"), "no/a: there is no folder no"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_status_2(
    arguments: Sequence[str], message: str
) -> None:
    run = bench(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


VLLM_CHAT = {
    "model": "hash",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}],
    "temperature": 0.0,
    "max_completion_tokens": 6,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
}
VLLM_COMPLETION = {
    "model": "hash",
    "prompt": "Hello there",
    "temperature": 0.0,
    "repetition_penalty": 1.0,
    "max_tokens": 6,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
}
SGLANG_CHAT = {
    "model": "hash",
    "messages": [{"role": "user", "content": "Hello there"}],
    "temperature": 0.0,
    "max_completion_tokens": 6,
    "stream": True,
    "ignore_eos": True,
}
SGLANG_COMPLETION = {
    "model": "hash",
    "prompt": "Hello there",
    "temperature": 0.0,
    "best_of": 1,
    "max_tokens": 6,
    "stream": True,
    "ignore_eos": True,
}


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/chat/completions", VLLM_CHAT, {"x-request-id": "bench-0"}),
        ("/v1/completions", VLLM_COMPLETION, {"Authorization": "Bearer None"}),
        ("/v1/chat/completions", SGLANG_CHAT, {}),
        ("/v1/completions", SGLANG_COMPLETION, {}),
    ],
    ids=["vllm-chat", "vllm-completions", "sglang-chat", "sglang-completions"],
)
def test_other_projects_benchmarks_work_against_the_gateway(
    path: str, body: dict[str, Any], headers: dict[str, str], gateway: str
) -> None:
    """The requests that `vllm bench serve` and `sglang.bench_serving` send."""
    with httpx.stream("POST", gateway + path, json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    said = [c for event in events for c in event["choices"]]
    text = "".join(c.get("text") or (c.get("delta") or {}).get("content") or "" for c in said)
    assert len(text) == 6
    if "stream_options" in body:
        assert events[-1]["usage"]["completion_tokens"] == 6
