"""What the worker refuses: with a status, and words that say what is allowed instead."""

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from hash_engine import VOCAB_SIZE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import Live, live_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

X = {"prompt": "x"}
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": HELLO}


def sends(**fields: object) -> dict[str, object]:
    """A body's part that asks for a prompt's KV to be handed over."""
    return {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, **fields}}


def receives(**fields: object) -> dict[str, object]:
    """The other half."""
    params = {
        "do_remote_prefill": True,
        "remote_request_id": "r",
        "remote_engine_id": "e",
        "remote_host": "127.0.0.1",
        "remote_port": 9,
    }
    return {"kv_transfer_params": {**params, **fields}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live() -> AsyncIterator[Live]:
    async with live_server() as running:
        yield running


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", "prompt"),
        ({**X, "max_tokens": 0}, "max_tokens", ">= 1"),
        ({**X, "max_tokens": "many"}, "max_tokens", "got `str`"),
        ({**X, "temperature": -1}, "temperature", ">= 0"),
        ({**X, "top_p": 0}, "top_p", "> 0"),
        ({**X, "top_k": -2}, "top_k", ">= -1"),
        ({**X, "n": 0}, "n", ">= 1"),
        ({**X, "n": 129}, "n", "<= 128"),
        ({**X, "logprobs": 21}, "logprobs", "<= 20"),
        ({**X, "presence_penalty": 3}, "presence_penalty", "<= 2"),
        ({**X, "stop": [""]}, "stop[0]", "length >= 1"),
        ({**X, "seed": 2**63}, "seed", "<="),
        ({**X, "min_tokens": 17}, "min_tokens", "at most max_tokens, 16"),
        ({**X, "best_of": 2}, "best_of", "equal n"),
        ({**X, "suffix": "end"}, "suffix", "not implemented"),
        ({**X, "logit_bias": {"1": 2}}, "logit_bias", "only be {} or null"),
        ({**X, "prompt_logprobs": 1}, "prompt_logprobs", "only be null"),
        ({**X, "response_format": {"type": "json_object"}}, "response_format", '"text"'),
        ({**X, **sends()}, "kv_transfer_params", "moves no KV"),
        ({**X, **sends(do_remote_decode=1)}, "kv_transfer_params.do_remote_decode", "bool"),
        ({**X, **sends(do_remote_prefill=True)}, "kv_transfer_params", "both"),
        ({**X, **sends(), "n": 2}, "kv_transfer_params", "max_tokens 1, n 1"),
        ({**X, **sends(), "max_tokens": 2}, "kv_transfer_params", "max_tokens 1, n 1"),
        ({**X, **sends(transfer_id="a b")}, "kv_transfer_params.transfer_id", "regex"),
        ({**X, **receives(remote_port=None)}, "kv_transfer_params", "needs remote_engine_id"),
        ({**X, **receives(remote_port=0)}, "kv_transfer_params.remote_port", ">= 1"),
        ({**X, **receives()}, "kv_transfer_params", "moves no KV"),
        ({**X, "stream_options": {"include_usage": True}}, "stream_options", "with stream"),
        ({**X, "echo": True, "logprobs": 1}, "echo", "without logprobs"),
        ({**X, "request_id": "a b"}, "request_id", "regex"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt", "empty"),
        ({"prompt": ["a", 1]}, "prompt", "mixes"),
        ({"prompt": [-1]}, "prompt[0]", ">= 0"),
        ({"prompt": [VOCAB_SIZE]}, "prompt", "vocabulary of 258"),
        ({"prompt": ["x"] * 600, "n": 2}, "prompt", "at most 1024"),
    ],
)
async def test_completions_say_what_is_wrong(
    live: Live, body: dict[str, object], param: str, words: str
) -> None:
    error = await live.error(**body)
    assert (error["code"], error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ({**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({**CHAT, "tools": []}, "tools"),
        ({**CHAT, "tools": [{}], "tool_choice": "required"}, "tool_choice"),
        ({**CHAT, "echo": True}, "echo"),
        ({**CHAT, "chat_template": "{{ 1 }}"}, "chat_template"),
        ({**CHAT, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (
            {**CHAT, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (
            {
                "messages": [{"role": "assistant", "content": []}],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
            "messages",
        ),
    ],
)
async def test_chats_say_what_is_wrong(
    live: Live, body: dict[str, object], param: str | None
) -> None:
    error = await live.error("/v1/chat/completions", **body)
    assert error["code"] == 400
    assert param is None or error["param"] == param


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"\xff", b'{"prompt": 1e999}'])
async def test_a_body_that_is_no_object_is_refused(live: Live, content: bytes) -> None:
    response = await live.http.post("/v1/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_prompt_that_does_not_fit_is_refused_with_numbers(live: Live) -> None:
    error = await live.error(prompt="x" * 510, max_tokens=3)
    assert error["code"] == 400
    assert "510 tokens" in error["message"]
    assert "512" in error["message"]
    too_long = await live.error(
        "/v1/chat/completions", messages=[{"role": "u", "content": "x" * 600}]
    )
    assert "at most 512" in too_long["message"]
    fits = await live.complete("x" * 510)  # the default length shrinks
    assert fits["usage"]["completion_tokens"] == 2


async def test_of_several_prompts_none_runs_if_one_does_not_fit(live: Live) -> None:
    await live.error(prompt=["short", "x" * 600], max_tokens=1)
    await live.until_idle()
    assert live.rig.worker.load().num_waiting == 0


async def test_an_unknown_model_is_404(live: Live) -> None:
    for path, body in (("/v1/completions", X), ("/v1/chat/completions", CHAT), ("/tokenize", X)):
        error = await live.error(path, model="gpt-4", **body)
        assert (error["code"], error["param"]) == (404, "model")
    with pytest.raises(openai.NotFoundError):
        await live.openai.completions.create(model="gpt-4", prompt="x")


async def test_paths_and_methods_that_are_not_there_are_errors_in_json(live: Live) -> None:
    assert (await live.error("/v1/nothing"))["code"] == 404
    assert (await live.error("/health"))["code"] == 405


async def test_fields_nobody_knows_are_ignored(live: Live) -> None:
    answer = await live.complete("x", user="me", unheard_of={"a": [1]}, session_id="s")
    assert answer["choices"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = (
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature"),
    *("top_p", "top_k", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "n"),
    *("best_of", "stream", "stream_options", "presence_penalty", "frequency_penalty", "echo"),
    *("cache_salt", "priority", "request_id", "return_token_ids", "logprobs", "top_logprobs"),
    *("tools", "tool_choice", "add_generation_prompt", "continue_final_message", "documents"),
    *("chat_template_kwargs", "add_special_tokens", "skip_special_tokens", "logit_bias", "suffix"),
    *("response_format", "prompt_logprobs", "tokens", "return_token_strs", "user"),
)
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
plausible = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.text(max_size=20) | st.lists(st.integers(0, 300), max_size=5),
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "system", "x"])},
                optional={"content": st.text(max_size=10) | st.none() | json_values},
            ),
            max_size=3,
        ),
        "tokens": st.lists(st.integers(0, 2**40), max_size=5),
        "max_tokens": st.integers(1, 20),
        "n": st.integers(1, 3),
        "stream": st.booleans(),
        "continue_final_message": st.booleans(),
        "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3),
        "logprobs": st.integers(0, 3) | st.booleans(),
        "return_token_ids": st.booleans(),
    },
)
BODIES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
odd = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4)


@BODIES
@given(path=st.sampled_from(PATHS), plausible=plausible, odd=odd)
async def test_no_body_whatever_is_a_server_error(
    live: Live, path: str, plausible: dict[str, object], odd: dict[str, object]
) -> None:
    response = await live.http.post(path, json={**plausible, **odd})
    assert response.status_code in {200, 400, 404}, response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    await live.until_idle()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None
)
@given(path=st.sampled_from(PATHS), content=st.binary(max_size=60))
async def test_no_bytes_whatever_are_a_server_error(live: Live, path: str, content: bytes) -> None:
    response = await live.http.post(path, content=content)
    assert response.status_code == 400


@pytest.mark.parametrize("path", PATHS)
async def test_surrogates_and_depth_are_no_server_error(live: Live, path: str) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    bodies = [
        b'{"prompt": "x", "messages": [{"role": "user", "content": %b}]}' % deep,
        b'{"prompt": "x", "tokens": [1], "unheard_of": %b}' % deep,
    ]
    for text in (b"\\ud800", b"\\udc00x", b"x\\ud800\\ud800", b"\\ud83d\\ude00"):
        message = b'[{"role": "user", "content": "%b"}]' % text
        bodies.append(b'{"prompt": "%b", "tokens": [1], "echo": true}' % text)
        bodies.append(b'{"messages": %b}' % message)
    for content in bodies:
        response = await live.http.post(path, content=content)
        assert response.status_code in {200, 400}, response.text
