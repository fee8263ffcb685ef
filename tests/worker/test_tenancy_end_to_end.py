"""Two tenants before a real worker: what one has computed is never found by the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from live_server import MODEL, live_server

from expediter.config import GatewayConfig, TenancyConfig, TenantConfig, WorkerEndpoint
from expediter.gateway.gateway import Gateway
from expediter.gateway.tenants import make_key
from expediter.routing.cache_aware import CacheAware

PROMPT = "a prompt of some length, so that it fills blocks. " * 8  # and the gateway's, of text
SECRET = "what only the server knows"


@asynccontextmanager
async def two_tenants() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """A client of each tenant, to one gateway before one worker."""
    keys = [make_key() for _ in range(2)]
    tenants = tuple(TenantConfig(tenant_id=hash_, keys=(hash_,)) for _, hash_ in keys)
    policy = CacheAware(load_weight=0.0, max_imbalance=0.2, slack_tokens=1024)
    async with live_server() as live:
        config = GatewayConfig(
            port=0,
            workers=(WorkerEndpoint(url=f"http://127.0.0.1:{live.port}"),),
            health_interval_seconds=0.05,
            tenancy=TenancyConfig(tenants=tenants, secret=SECRET),
        )
        gateway = Gateway(config, policy=policy)
        await gateway.start()
        url = f"http://127.0.0.1:{gateway.port}"
        first, second = (
            httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"})
            for key, _ in keys
        )
        try:
            async with first, second, asyncio.timeout(30):
                while not gateway.membership.ready():  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
                yield first, second
        finally:
            await gateway.stop()


async def cached(client: httpx.AsyncClient, **fields: object) -> tuple[int, int]:
    """Tokens that the worker had cached, and those that the gateway thought it had."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, **fields}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    details = response.json()["usage"]["prompt_tokens_details"]
    found = details["cached_tokens"] if details else 0
    return found, int(response.headers["x-expediter-matched-tokens"])


@pytest.mark.parametrize("fields", [{}, {"cache_salt": "the same"}])
async def test_no_tenant_finds_what_another_computed(fields: dict[str, object]) -> None:
    async with two_tenants() as (first, second):
        assert await cached(first, **fields) == (0, 0)
        assert await cached(second, **fields) == (0, 0)
        for client in (first, second):
            found, matched = await cached(client, **fields)
            assert found == (len(PROMPT) - 1) // 4 * 4
            assert matched > 0


async def test_clients_salts_part_a_tenants_own_prompts() -> None:
    async with two_tenants() as (first, _):
        assert await cached(first) == (0, 0)
        assert await cached(first, cache_salt="one") == (0, 0)
        assert await cached(first, cache_salt="two") == (0, 0)
        assert (await cached(first, cache_salt="one"))[0] > 0
