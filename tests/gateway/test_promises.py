"""What operators of routers complain about, and that is right here: see docs/fleet-health.md.

Each promise has its test; these are those that have no better place.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
from fake_worker import (
    JSON_OK,
    OK,
    SSE_HEAD,
    FakeWorker,
    Received,
    always,
    ask,
    chunk,
    client_of,
    gateway_before,
    get,
    post,
    until,
)

from expediter.config import RoutingConfig
from expediter.gateway.gateway import Gateway
from expediter.load import WorkerId

CHAT = "/v1/chat/completions"
LONG = "a long and winding text, of which there is more and more, " * 20
EMPTY = [
    OK + b"content-length: 0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
]


async def matched(gateway: Gateway, body: object, *, path: str = "/v1/completions") -> int:
    answer = await ask(gateway, post(json.dumps(body).encode(), path=path))
    assert answer.status < 300
    return int(answer.headers["x-expediter-matched-tokens"])


@pytest.mark.parametrize(
    "prompt",
    [
        LONG,
        list(range(400)),
        [LONG, "short"],
        [[1, 2, 3], list(range(400))],
    ],
    ids=["text", "token ids", "a batch of texts", "a batch of token ids"],
)
async def test_every_kind_of_prompt_is_routed_by_its_prefix(prompt: object) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(FakeWorker(always(JSON_OK), name=name))
            for name in "abc"
        ]
        gateway = await stack.enter_async_context(gateway_before(*workers))
        assert await matched(gateway, {"prompt": prompt}) == 0
        assert await matched(gateway, {"prompt": prompt}) > 200
        assert [len(worker.received) for worker in workers].count(0) == 2


def image(url: str) -> list[dict[str, object]]:
    """The image comes first, so that all the text lies behind it."""
    return [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{url}"}},
        {"type": "text", "text": LONG},
    ]


async def test_different_images_are_different_prefixes_although_the_text_is_the_same() -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:

        async def ask_about(url: str) -> int:
            chat = {"messages": [{"role": "user", "content": image(url)}]}
            return await matched(gateway, chat, path=CHAT)

        assert await ask_about("AAAA") == 0
        assert await ask_about("AAAA") > 200
        assert await ask_about("BBBB") < 20


@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
async def test_different_salts_are_different_prefixes(path: str) -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:

        async def ask_with(salt: str | None) -> int:
            body = {"prompt": LONG, "messages": [{"role": "user", "content": LONG}]}
            return await matched(gateway, {**body, "cache_salt": salt}, path=path)

        assert [await ask_with(salt) for salt in ("one", "two", None)] == [0, 0, 0]
        assert min([await ask_with(salt) for salt in ("one", "two", None)]) > 200


@pytest.mark.parametrize("answer", EMPTY, ids=["no length", "no chunk", "no content"])
async def test_a_worker_that_answers_empty_does_not_earn_the_prefix(answer: bytes) -> None:
    """Or it would draw all that begins alike, fast as it is."""
    async with FakeWorker(always(answer)) as worker, gateway_before(worker) as gateway:
        for _ in range(3):
            assert await matched(gateway, {"prompt": LONG}) == 0
        assert gateway.index.num_assumed_blocks(WorkerId("w")) == 0


async def test_a_worker_that_answers_nothing_does_not_earn_it_either() -> None:
    async def nothing(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with FakeWorker(nothing) as worker, gateway_before(worker) as gateway:
        await ask(gateway, post(json.dumps({"prompt": LONG}).encode()))
        assert gateway.index.num_assumed_blocks(WorkerId("w")) == 0


async def test_a_requests_work_counts_until_the_last_byte_of_its_answer() -> None:
    gate = asyncio.Event()

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(b"data: [DONE]\n\n"))  # all but the end of the framing
        await gate.wait()
        writer.write(b"0\r\n\r\n")

    async with (
        FakeWorker(script) as worker,
        gateway_before(worker) as gateway,
        client_of(gateway) as client,
    ):
        client.send(post())
        await client.reader.readuntil(b"[DONE]")
        work = gateway.dispatcher.work
        assert work.num_requests(WorkerId("w")) == 1
        gate.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        await until(lambda: work.num_requests(WorkerId("w")) == 0)


async def test_with_one_of_two_workers_down_the_service_is_ready() -> None:
    async with FakeWorker(always(JSON_OK), name="a") as one:
        two = FakeWorker(always(JSON_OK), name="b")
        await two.__aenter__()
        async with gateway_before(one, two) as gateway:
            await two.stop()
            await until(lambda: len(gateway.membership.ready()) == 1)
            assert (await ask(gateway, get("/ready"))).status == 200
            await one.stop()
            await until(lambda: not gateway.membership.ready())
            answer = await ask(gateway, get("/ready"))
            assert (answer.status, json.loads(answer.body)["ready"]) == (503, False)


async def test_many_errors_of_clients_open_no_breaker_and_are_asked_once_each() -> None:
    raw = b"HTTP/1.1 429 Too Many\r\nretry-after: 7\r\ncontent-length: 3\r\n\r\nno!"
    async with FakeWorker(always(raw)) as worker, gateway_before(worker) as gateway:
        answers = [await ask(gateway, post()) for _ in range(20)]
        assert {(a.status, a.headers["retry-after"]) for a in answers} == {(429, "7")}
        assert len(worker.request_ids) == len(worker.received) == 20
        assert gateway.membership.ready()[0].breaker.num_opened == 0


async def test_the_index_stays_within_its_bound_whatever_is_asked() -> None:
    bound = 200

    async def sizes(gateway: Gateway, prompts: Sequence[str]) -> list[int]:
        found = []
        for prompt in prompts:
            await ask(gateway, post(json.dumps({"prompt": prompt}).encode()))
            found.append(gateway.index.num_assumed_blocks(WorkerId("w")))
        return found

    routing = RoutingConfig(assumed_blocks=bound)
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker, routing=routing) as gateway,
    ):
        found = await sizes(gateway, [f"{number} {LONG}" for number in range(60)])
        assert max(found) <= bound
        assert min(found) > 0
