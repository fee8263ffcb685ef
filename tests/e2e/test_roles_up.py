"""`up --prefill 1 --decode 2`: prompts are computed on one worker and answered from others."""

import time

import httpx
import pytest
from e2e_fleet import MODEL, Fleet, kill, running_fleet

STORY = "The river runs by the old stone bridge, and the lamp above it is never out. "
SETTINGS = (
    "fleet.num-prefill=1",
    "fleet.num-decode=2",
    'gateway.disaggregation.split="always"',
    "gateway.disaggregation.min-uncached-tokens=64",
)


@pytest.fixture(scope="module")
def pools(model, tmp_path_factory: pytest.TempPathFactory):
    assert model.is_file()
    with running_fleet(tmp_path_factory.mktemp("pools"), *SETTINGS) as running:
        deadline = time.monotonic() + 120
        while running.http.get("/ready").json()["num_ready_workers"] < 3:
            assert time.monotonic() < deadline, running.log.read_text("utf-8")
            time.sleep(0.1)
        yield running


def complete(fleet: Fleet, prompt: str, **options: object):
    body = {"model": MODEL, "prompt": prompt, "temperature": 0.0, "max_tokens": 16, **options}
    response = fleet.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response


def decision_of(fleet: Fleet) -> dict:
    return fleet.http.get("/decisions?limit=1").json()[0]


def alone(fleet: Fleet, prompt: str) -> str:
    """What the prefill worker answers if it has the request to itself."""
    [worker] = [w for w in fleet.http.get("/workers").json() if w["role"] == "prefill"]
    body = {"model": MODEL, "prompt": prompt, "temperature": 0.0, "max_tokens": 16}
    answer = httpx.post(f"{worker['url']}/v1/completions", json=body, timeout=120.0)
    return answer.json()["choices"][0]["text"]


def test_a_prompt_is_computed_on_one_worker_and_answered_by_another(pools: Fleet) -> None:
    """Greedy answers are those of one worker alone; the decision tells what was moved."""
    for number in (10, 20, 30):
        prompt = f"Chapter {number}. " + STORY * number
        answer = complete(pools, prompt)
        text = answer.json()["choices"][0]["text"]
        assert text == alone(pools, prompt)
        assert answer.headers["x-expediter-prefill-worker"] == "prefill-0"
        assert answer.headers["x-expediter-worker"].startswith("decode-")
        decision = decision_of(pools)
        assert (decision["fallback"], decision["prefill_error"]) == (None, None)
        transfer = decision["transfer"]
        assert transfer["bytes"] > 0
        assert transfer["tokens"] >= answer.json()["usage"]["prompt_tokens"] - 16
        assert transfer["seconds"] > 0
        assert transfer["first_token"] == "prefill"


def test_a_stream_says_the_same(pools: Fleet) -> None:
    prompt = "A stream. " + STORY * 12
    with pools.stream(prompt, max_tokens=16) as stream:
        streamed = "".join(event["choices"][0]["text"] for event in stream.events())
    assert complete(pools, prompt).json()["choices"][0]["text"] == streamed


def test_a_short_prompt_stays_with_a_decode_worker(pools: Fleet) -> None:
    answer = complete(pools, "Once upon a time")
    assert answer.headers["x-expediter-worker"].startswith("decode-")
    assert answer.headers["x-expediter-reason"] == "short-prompt"


def test_without_its_prefill_worker_the_fleet_still_answers_the_same(pools: Fleet) -> None:
    prompt = "The last one. " + STORY * 15
    expected = complete(pools, prompt).json()["choices"][0]["text"]
    pid = pools.pids()["prefill-0"]
    kill(pid)
    answer = complete(pools, prompt + "And")
    assert answer.json()["choices"][0]["text"]
    assert answer.headers["x-expediter-worker"].startswith("decode-")
    again = complete(pools, prompt)
    assert again.json()["choices"][0]["text"] == expected
