"""OPTIONS is answered here for the gateway's own paths and passed on for the workers'."""

import pytest
from fake_worker import JSON_OK, FakeWorker, always, ask, gateway_before, get, post


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_an_own_path_says_how_it_is_asked(path: str) -> None:
    async with gateway_before() as gateway:
        answer = await ask(gateway, get(path, method="OPTIONS"))
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
        refused = await ask(gateway, post(path=path))
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


async def test_what_a_workers_path_allows_is_for_the_worker_to_say() -> None:
    async with FakeWorker(always(JSON_OK)) as worker, gateway_before(worker) as gateway:
        answer = await ask(gateway, get("/v1/chat/completions", method="OPTIONS"))
        assert answer.headers["x-expediter-worker"] == "w"
        assert worker.received[0].method == "OPTIONS"
