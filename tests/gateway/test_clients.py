"""Clients as they are: OpenAI's library, and the benchmarks of vLLM and SGLang.

The gateway and its workers are processes; the bodies of the benchmarks' requests are field for
field those of `vllm bench serve` (vllm/benchmarks/lib/endpoint_request_func.py, 0.32) and of
`sglang.bench_serving` (python/sglang/bench_serving.py), sent with aiohttp as they do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from fake_worker import JSON_OK, OK, SSE_HEAD, FakeWorker, always, ask, chunk, gateway_before, post
from process_fleet import ProcessOnPort, gateway_process, worker_process

from expediter.config import TenancyConfig, TenantConfig

MODEL = "hash"
MATCHED = "x-expediter-matched-tokens"
HELLO: Any = [{"role": "user", "content": "Hello, who are you?"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessOnPort]:
    """Before two workers; all three live as long as this module."""
    with asyncio.Runner() as runner:
        running = fleet(tmp_path_factory.mktemp("fleet"))
        yield runner.run(running.__aenter__())
        runner.run(running.__aexit__(None, None, None))


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[ProcessOnPort]:
    async with (
        worker_process("--step-seconds", "0") as a,
        worker_process("--step-seconds", "0") as b,
        gateway_process(folder, a, b) as gateway,
    ):
        yield gateway


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)


async def test_openais_client_is_at_home(gateway: ProcessOnPort) -> None:
    async with client_of(gateway.url) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        chat = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2
        )
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 8
        assert chat.choices[0].logprobs is not None
        tokens = chat.choices[0].logprobs.content or []
        assert [len(token.top_logprobs) for token in tokens] == [2] * 8
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        *events, last = [event async for event in stream]
        said = "".join(e.choices[0].delta.content or "" for e in events)
        assert said == chat.choices[0].message.content
        assert last.usage == chat.usage.model_copy(
            update={"prompt_tokens_details": last.usage and last.usage.prompt_tokens_details}
        )
        completion = await client.completions.create(
            model=MODEL, prompt=["one", "two"], max_tokens=3, temperature=0
        )
        assert [choice.index for choice in completion.choices] == [0, 1]


async def test_openais_client_raises_what_it_should(gateway: ProcessOnPort) -> None:
    async with client_of(gateway.url) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="another", messages=HELLO)
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model=MODEL, input="text")  # workers have none
    async with gateway_before() as nobody, client_of(url_of(nobody)) as client:
        with pytest.raises(openai.InternalServerError) as down:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
        assert down.value.status_code == 503


def url_of(gateway: Any) -> str:
    return f"http://127.0.0.1:{gateway.port}"


def answer(status: bytes, body: bytes, extra: bytes = b"") -> bytes:
    head = OK.replace(b"200 OK", status) + b"content-type: application/json\r\n" + extra
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (b"401 Unauthorized", openai.AuthenticationError),
        (b"403 Forbidden", openai.PermissionDeniedError),
        (b"409 Conflict", openai.ConflictError),
        (b"422 Unprocessable", openai.UnprocessableEntityError),
        (b"429 Too Many Requests", openai.RateLimitError),
        (b"500 Internal Server Error", openai.InternalServerError),
    ],
)
async def test_a_workers_error_is_the_exception_that_it_would_be_without_a_gateway(
    status: bytes, error: type[openai.APIStatusError]
) -> None:
    """429 keeps its Retry-After; errors of a client open no breaker."""
    raw = answer(status, b'{"error":{"message":"because"}}', b"retry-after: 7\r\n")
    async with (
        FakeWorker(always(raw)) as worker,
        gateway_before(worker) as gateway,
        client_of(url_of(gateway)) as client,
    ):
        for _ in range(4):
            with pytest.raises(error, match="because") as caught:
                await client.chat.completions.create(model=MODEL, messages=HELLO)
            assert caught.value.response.headers["retry-after"] == "7"
        assert len(worker.received) == 4
        assert len(gateway.membership.ready()) == 1


async def test_embeddings_pass_in_both_directions() -> None:
    body = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5]}],'
    body += b'"model":"m","usage":{"prompt_tokens":2,"total_tokens":2}}'
    async with (
        FakeWorker(always(answer(b"200 OK", body))) as worker,
        gateway_before(worker) as gateway,
        client_of(url_of(gateway)) as client,
    ):
        made = await client.embeddings.create(model="m", input="two words", encoding_format="float")
        assert made.data[0].embedding == [0.5]
        assert worker.received[0].target == "/v1/embeddings"


TOOL_CALL = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":null,"reasoning":"h\\u006dm","tool_calls":[{"id":'
    b'"call_1","type":"function","function":{"name":"f","arguments":"{\\"a\\": 1.50}"}}]},'
    b'"logprobs":{"content":[{"token":"x","logprob":-1e-07,"bytes":[120],"top_logprobs":[]}]},'
    b'"finish_reason":"tool_calls","stop_reason":null}],"of_tomorrow":{"z":[1,2],"a":null}}'
)
EVENTS = [
    b": keep-alive\n\n",
    b'event: unheard.of\ndata: {"a":1}\nid: 7\n\n',
    b'data: {"text":"[DONE]"}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1"}]}}]}\r\n\r\n',
    b"data: [DONE]\n\n",
]


async def test_tool_calls_logprobs_and_unknown_fields_arrive_byte_for_byte() -> None:
    async with (
        FakeWorker(always(answer(b"200 OK", TOOL_CALL))) as worker,
        gateway_before(worker) as gateway,
    ):
        body = (
            b'{"messages":[],"tools":[{"type":"function"}],"tool_choice":"auto", "of_tomorrow":1}'
        )
        found = await ask(gateway, post(body, path="/v1/chat/completions"))
        assert found.body == TOOL_CALL
        assert worker.received[0].body == body


async def test_events_arrive_byte_for_byte_and_done_within_a_text_ends_nothing() -> None:
    raw = SSE_HEAD + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"
    async with FakeWorker(always(raw)) as worker, gateway_before(worker) as gateway:
        found = await ask(gateway, post(b'{"stream":true}', path="/v1/chat/completions"))
        assert (found.body, found.is_complete) == (b"".join(EVENTS), True)


VLLM: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": MODEL,
        "prompt": "a random prompt of some words " * 20,
        "repetition_penalty": 1.0,
        "max_tokens": 16,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    },
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "random words " * 20}]}],
        "max_completion_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    },
}
SGLANG: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": MODEL,
        "prompt": "a random prompt of some words " * 20,
        "temperature": 0.0,
        "best_of": 1,
        "max_tokens": 16,
        "stream": True,
        "ignore_eos": True,
    },
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "random words " * 20}],
        "temperature": 0.0,
        "max_completion_tokens": 16,
        "stream": True,
        "ignore_eos": True,
    },
}


async def test_the_requests_of_vllms_and_sglangs_benchmarks_are_served_as_they_are(
    gateway: ProcessOnPort,
) -> None:
    headers = {"Authorization": "Bearer k", "x-request-id": "benchmark-0", "x-custom": "y"}
    async with aiohttp.ClientSession(base_url=gateway.url, trust_env=True) as session:
        for bodies in (VLLM, SGLANG):
            for path, body in bodies.items():
                for _ in range(4):  # the last finds the prompt of those before
                    async with session.post(path, json=body, headers=headers) as response:
                        assert response.status == 200, await response.text()
                        lines = (await response.text()).split("\n\n")
                        matched = int(response.headers[MATCHED])
                assert lines[-2] == "data: [DONE]"
                events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
                said = [text_of(event) for event in events if event["choices"]]
                assert len("".join(said)) == 16
                assert matched > 50
                if "stream_options" in body:
                    assert events[-1]["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", [{"text": "random words " * 40}, {"input_ids": [[*range(99)]]}])
async def test_sglangs_own_api_is_forwarded_and_routed_by_its_prompt(
    prompt: dict[str, Any],
) -> None:
    """Its benchmark speaks that unless told otherwise. With tenants it is closed."""
    body = {
        **prompt,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": True},
        "stream": True,
        "lora_path": "",
        "return_logprob": False,
        "logprob_start_len": -1,
    }
    request = post(json.dumps(body).encode(), path="/generate")
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        found = [int((await ask(gateway, request)).headers[MATCHED]) for _ in range(2)]
        assert found[0] == 0
        assert found[1] > 90
        assert {r.body for r in worker.received} == {json.dumps(body).encode()}
        tenants = TenancyConfig(tenants=(TenantConfig(tenant_id="t"),), secret="0" * 16)
        async with gateway_before(worker, tenancy=tenants) as closed:
            assert (await ask(closed, request)).status == 404


def text_of(event: dict[str, Any]) -> str:
    choice = event["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
