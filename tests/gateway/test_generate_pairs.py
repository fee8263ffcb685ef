"""SGLang's own API over a prefill and a decode worker: prompt log probabilities come from both."""

import asyncio
import json

import pytest
from fake_worker import SSE_HEAD, Received, Script, ask, chunk, post
from pair_workers import (
    BROKEN,
    REFUSED,
    DecodeWorker,
    PrefillWorker,
    answer,
    fields_of,
    nothing_is_left,
    pools,
    says,
    sglang,
)

from expediter.gateway.prompt_logprobs import merged

PROMPT = [[-0.5, 1, None], [-1.25, 2, None]]
FIELDS = {"text": "a prompt that is long enough to be worth it", "return_logprob": True}


def sequence(text: str, prompt: list[object] | None, **more: object) -> dict[str, object]:
    info = {"id": "r1", "prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}
    info["output_token_logprobs"] = [[-0.125, 7, None]]
    if prompt is not None:
        info["input_token_logprobs"] = prompt
    return {"text": text, "meta_info": info, **more}


def events(*parts: dict[str, object], delay: float = 0.0) -> Script:
    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay)
        writer.write(SSE_HEAD)
        for part in parts:
            event = b"data: %b\n\n" % json.dumps(part).encode()
            writer.write(chunk(event[:11]))  # an event may come in pieces
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(chunk(event[11:]))
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    return script


def late(raw: bytes) -> Script:
    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.write(raw)

    return script


def generate(**fields: object) -> bytes:
    return post(json.dumps(FIELDS | fields).encode(), path="/generate")


@pytest.mark.parametrize("prefill_is_late", [False, True])
async def test_a_whole_answer_has_the_prompt_s_from_the_prefill_worker(
    prefill_is_late: bool,
) -> None:
    first = answer(sequence("x", PROMPT))
    async with (
        sglang(PrefillWorker((late if prefill_is_late else says)(first), name="p")) as p,
        sglang(DecodeWorker(says(answer(sequence("x y", [[-2.0, 3, None]]))), name="d")) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, generate())
        assert json.loads(got.body) == sequence("x y", [*PROMPT, [-2.0, 3, None]])
        assert got.headers["x-expediter-prefill-worker"] == "p"
        assert p.received[0].body == d.received[0].body
        await nothing_is_left(gateway)


async def test_a_batch_s_answers_get_each_its_own() -> None:
    prompts = [PROMPT, PROMPT[1:]]
    body = answer([sequence("x", prompt) for prompt in prompts])
    async with (
        sglang(PrefillWorker(says(body), name="p")) as p,
        sglang(
            DecodeWorker(says(answer([sequence("x y", None), sequence("z", [])])), name="d")
        ) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, generate(text=["a", "b"], sampling_params={"n": 1}))
        assert json.loads(got.body) == [sequence("x y", prompts[0]), sequence("z", prompts[1])]
        assert len(set(fields_of(d.received[0])["bootstrap_room"])) == 2


@pytest.mark.parametrize("delay", [0.0, 0.1])
async def test_a_stream_waits_for_the_prefill_worker_and_then_flows(delay: float) -> None:
    parts = [sequence("x", [], index=0), sequence("x y", [], index=0)]
    async with (
        sglang(PrefillWorker(events(sequence("x", PROMPT, index=0), delay=delay), name="p")) as p,
        sglang(DecodeWorker(events(*parts), name="d")) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, generate(stream=True))
        lines = [line for line in got.body.split(b"\n\n") if line]
        assert lines[-1] == b"data: [DONE]"
        texts = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]
        assert texts == [sequence("x", PROMPT, index=0), sequence("x y", PROMPT, index=0)]
        await nothing_is_left(gateway)


async def test_who_does_not_ask_for_it_gets_the_decode_worker_s_bytes() -> None:
    raw = answer(sequence("x y", None))
    async with (
        sglang(PrefillWorker(says(answer(sequence("x", PROMPT))), name="p")) as p,
        sglang(DecodeWorker(says(raw), name="d")) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, generate(return_logprob=False))
        assert got.body == raw.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("raw", [REFUSED, BROKEN])
async def test_an_error_of_the_decode_worker_is_the_answer(raw: bytes) -> None:
    async with (
        sglang(PrefillWorker(says(answer(sequence("x", PROMPT))), name="p")) as p,
        sglang(DecodeWorker(says(raw), name="d")) as d,
        pools(p, d) as gateway,
    ):
        got = await ask(gateway, generate())
        assert got.status == int(raw[9:12])
        assert got.body == raw.partition(b"\r\n\r\n")[2]
        await nothing_is_left(gateway)


@pytest.mark.parametrize(
    ("whole", "prefill"),
    [
        (b"", b"x"),
        (b"[1]", b"[2]"),
        (b'{"text":"a"}', b'{"meta_info":3}'),
        (b'{"text":"a","meta_info":{}}', b""),
        (b"data: [DONE]", b"data: {}\n\ndata: [DONE]\n\n"),
    ],
)
def test_what_has_another_form_stays_as_it_is(whole: bytes, prefill: bytes) -> None:
    assert merged(prefill)(whole) == whole
