"""Who is let in, what the worker sees of it, and how refusals look on the wire."""

import asyncio
import json
import random

import pytest
from fake_worker import (
    JSON_OK,
    FakeWorker,
    Received,
    always,
    ask,
    client_of,
    gateway_before,
    get,
    post,
    until,
)

from expediter.config import TenancyConfig, TenantConfig
from expediter.errors import ConfigError, RequestRejected
from expediter.gateway.tenants import Tenancy, hash_key, make_key, refusal_reply

SALT = "0123456789abcdef"
KEY = "Authorization: Bearer k\r\n"


def tenancy(*, worker_authorization: str | None = None, **limits: int) -> TenancyConfig:
    tenant = TenantConfig(tenant_id="a", keys=(hash_key("k"),), cache_salt=SALT, **limits)
    return TenancyConfig(tenants=(tenant,), worker_authorization=worker_authorization)


@pytest.mark.parametrize("credentials", ["", "Bearer x", "Bearer", "Basic k"])
@pytest.mark.parametrize("body", [b"", b"{}", b"not JSON"])
async def test_without_a_known_key_nothing_reaches_a_worker(credentials: str, body: bytes) -> None:
    headers = f"Authorization: {credentials}\r\n" if credentials else ""
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker, tenancy=tenancy()) as gateway,
    ):
        answer = await ask(gateway, post(body, headers=headers))
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        error = json.loads(answer.body)["error"]
        assert (error["type"], error["code"]) == ("authentication_error", 401)
        assert (await ask(gateway, get("/v1/models"))).status == 401
        assert (await ask(gateway, get("/health"))).status == 200
        assert worker.received == []


@pytest.mark.parametrize("own", [None, "Bearer ours"])
async def test_worker_gets_the_salt_and_never_the_key(own: str | None) -> None:
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker, tenancy=tenancy(worker_authorization=own)) as gateway,
    ):
        answer = await ask(gateway, post(b'{"prompt": "hi" }', headers=KEY))
        assert answer.status == 200
        received = worker.received[0]
        assert received.body == b'{"prompt": "hi" ,"cache_salt":"%b"}' % SALT.encode()
        assert received.values("authorization") == ([own] if own else [])


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "hi", "kv_transfer_params": {"remote_block_ids": [1]}}',
        b'{"prompt": "hi", "kv_\\u0074ransfer_params": null}',
        b'{"prompt": "hi", "kv_transfer_params": {}, "max_tokens": "5"}',
        b'{"prompt": "hi", "kv_\\u0074ransfer_params": {}, "x": NaN}',
        '{"kv_transfer_params": {}}'.encode("utf-16"),
    ],
)
async def test_clients_cannot_name_another_workers_blocks(body: bytes, is_open: bool) -> None:
    config = None if is_open else tenancy()
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker, tenancy=config) as gateway,
    ):
        answer = await ask(gateway, post(body, headers=KEY))
        assert answer.status == 400
        assert worker.received == []
        prose = b'{"prompt": "what is \\"kv_transfer_params\\": 1"}'
        assert (await ask(gateway, post(prose, headers=KEY))).status == 200


async def test_slot_is_held_to_the_last_byte_and_released_when_the_client_leaves() -> None:
    may_end = asyncio.Event()

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(JSON_OK[:-1])
        await may_end.wait()
        writer.write(JSON_OK[-1:])

    async with (
        FakeWorker(script) as worker,
        gateway_before(worker, tenancy=tenancy(max_concurrent=1)) as gateway,
    ):
        async with client_of(gateway) as client:
            client.send(post(headers=KEY))
            await until(lambda: len(worker.received) == 1)
            refused = await ask(gateway, post(headers=KEY))
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert json.loads(refused.body)["error"]["type"] == "rate_limit_error"
        await until(lambda: worker.num_hung_up == 1)
        may_end.set()
        assert (await ask(gateway, post(headers=KEY))).status == 200


async def test_no_slot_leaks_when_clients_leave_at_random() -> None:
    rng = random.Random(7)

    async def script(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(rng.random() * 0.01)
        writer.write(JSON_OK)

    async with (
        FakeWorker(script) as worker,
        gateway_before(worker, tenancy=tenancy(max_concurrent=4)) as gateway,
    ):
        for _ in range(60):
            async with client_of(gateway) as client:
                client.send(post(headers=KEY))
                await asyncio.sleep(rng.random() * 0.01)
        answers = []
        while answers[-4:] != [200] * 4:
            async with asyncio.TaskGroup() as tasks:
                four = [tasks.create_task(ask(gateway, post(headers=KEY))) for _ in range(4)]
            answers = [answer.result().status for answer in four]


@pytest.mark.parametrize("body", [b"[1]", b"not JSON", b'{"max_tokens": "50"}'])
async def test_tenants_body_whose_cost_cannot_be_read_is_refused(body: bytes) -> None:
    """Some workers take "50" for a number: what they would use was never counted."""
    async with (
        FakeWorker(always(JSON_OK)) as worker,
        gateway_before(worker, tenancy=tenancy()) as gateway,
    ):
        assert (await ask(gateway, post(body, headers=KEY))).status == 400
        assert worker.received == []


async def test_tokens_count_as_the_worker_says() -> None:
    usage = b'{"usage": {"prompt_tokens": 2, "total_tokens": 95, "completion_tokens": 93}}'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(usage)
    async with (
        FakeWorker(always(head + usage)) as worker,
        gateway_before(worker, tenancy=tenancy(tokens_per_minute=100)) as gateway,
    ):
        body = b'{"prompt": "hi", "max_tokens": 50}'
        assert (await ask(gateway, post(body, headers=KEY))).status == 200
        refused = await ask(gateway, post(body, headers=KEY))
        assert refused.status == 429
        assert 20 <= int(refused.headers["retry-after"]) <= 60
        assert len(worker.received) == 1


async def test_requests_that_no_worker_took_cost_no_tokens() -> None:
    async with gateway_before(tenancy=tenancy(tokens_per_minute=100)) as gateway:
        for _ in range(3):
            answer = await ask(gateway, post(b'{"max_tokens": 60}', headers=KEY))
            assert answer.status == 503


def test_retry_after_is_rounded_up() -> None:
    reply = refusal_reply(RequestRejected("no", retry_after=2.01))
    assert dict(reply.headers)[b"retry-after"] == b"3"


def test_new_keys_differ_and_match_their_hashes() -> None:
    (key, hashed), (other, _) = make_key(), make_key()
    assert key != other
    assert hash_key(key) == hashed
    assert key not in hashed


def test_tenants_that_share_a_key_or_salt_are_a_mistake() -> None:
    hashed = hash_key("k")
    for tenants in (
        (TenantConfig(tenant_id="a", keys=(hashed,)), TenantConfig(tenant_id="b", keys=(hashed,))),
        (TenantConfig(tenant_id="a", keys=()), TenantConfig(tenant_id="a", keys=())),
        tuple(TenantConfig(tenant_id=i, keys=(), cache_salt=SALT) for i in "ab"),
    ):
        with pytest.raises(ConfigError, match="twice"):
            Tenancy(TenancyConfig(tenants=tenants, secret=SALT), clock=lambda: 0.0)
    with pytest.raises(ConfigError, match="secret"):
        Tenancy(TenancyConfig(tenants=(TenantConfig(tenant_id="a", keys=()),)), clock=lambda: 0.0)
