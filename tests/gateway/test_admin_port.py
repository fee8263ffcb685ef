"""The admin port: what it shows, whom it lets in, and that what it changes is changed."""

import asyncio
import json
from collections import Counter

import httpx
import pytest
from fake_worker import JSON_OK, OK, FakeWorker, Received, always, ask, post, until
from operated import operated

from expediter.config import AdminConfig, WorkerEndpoint
from expediter.errors import ConfigError
from expediter.gateway.admin import AdminServer, create_admin_app
from expediter.gateway.gateway import Gateway

TOKEN = "0123456789abcdef"
ROBIN = {"policy": "round-robin"}


async def placed(gateway: Gateway, num_requests: int = 6) -> Counter[str]:
    """Where requests go now."""
    answers = [await ask(gateway, post(b'{"prompt":"%d"}' % n)) for n in range(num_requests)]
    return Counter(answer.headers.get("x-expediter-worker", "nobody") for answer in answers)


def usage_answer(num_prompt: int, num_cached: int, num_output: int) -> bytes:
    usage = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
    body = json.dumps({"usage": usage}).encode()
    return OK + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def test_every_page_is_there_and_what_it_says_agrees() -> None:
    async with (
        FakeWorker(always(usage_answer(100, 64, 5)), name="a") as a,
        operated(a) as (gateway, admin),
    ):
        await placed(gateway, 3)
        assert (await admin.get("/health")).json() == {"status": "ok"}
        assert (await admin.get("/ready")).json() == {"ready": True, "num_ready_workers": 1}
        stats = (await admin.get("/stats")).json()
        assert stats["requests"]["placed"] == 3
        assert stats["statuses"] == {"200": 3}
        assert sum(stats["latency"]["request_seconds"]["counts"]) == 3
        [worker] = (await admin.get("/workers")).json()
        assert stats["workers"] == [worker]
        assert (worker["worker_id"], worker["actual_cached_tokens"]) == ("a", 192)
        assert worker["num_requests"] == 0
        decisions = (await admin.get("/decisions?limit=2")).json()
        assert [decision["worker"] for decision in decisions] == ["a", "a"]
        assert (await admin.get("/config")).json()["routing"]["policy"] == "slo"
        page = (await admin.get("/metrics")).text
        assert 'expediter_requests_in_flight{worker="a"} 0.0' in page


async def test_with_no_worker_up_it_is_alive_and_not_ready() -> None:
    async with operated() as (_, admin):
        assert (await admin.get("/health")).status_code == 200
        assert (await admin.get("/ready")).status_code == 503


@pytest.mark.parametrize("query", ["limit=x", "limit=-1", "limit=", "limit=1e3", "limit=%C2%B2"])
async def test_a_limit_that_is_no_number_is_refused(query: str) -> None:
    async with operated() as (_, admin):
        answer = await admin.get(f"/decisions?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "limit must be a number"


async def test_recent_traffic_is_a_trace_with_what_prompts_share() -> None:
    async with (
        FakeWorker(always(usage_answer(1500, 0, 7))) as worker,
        operated(worker) as (gateway, admin),
    ):
        shared = "once upon a time " * 300
        for tail in ("and then", "but before that", "x"):
            await ask(gateway, post(json.dumps({"prompt": shared + tail}).encode()))
        answer = await admin.get("/trace?seconds=600")
        assert answer.headers["content-type"].startswith("application/jsonl")
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert [row["input_length"] for row in rows] == [1500] * 3
        assert [row["output_length"] for row in rows] == [7] * 3
        assert rows[0]["timestamp"] == 0
        assert len({tuple(row["hash_ids"][:2]) for row in rows}) == 1
        assert len({row["hash_ids"][-1] for row in rows}) == 3
        assert "once" not in answer.text
        assert (await admin.get("/trace?seconds=ten")).status_code == 400


async def test_a_worker_that_is_added_gets_requests_and_one_removed_gets_none() -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        operated(a) as (gateway, admin),
    ):
        await admin.post("/policy", json=ROBIN)
        assert await placed(gateway) == {"a": 6}
        added = await admin.post("/workers", json={"url": b.endpoint.url, "worker-id": "b"})
        assert (added.status_code, added.json()["worker_id"]) == (201, "b")
        await until(lambda: len(gateway.membership.ready()) == 2)
        assert await placed(gateway) == {"a": 3, "b": 3}
        assert (await admin.delete("/workers/a")).status_code == 202
        await until(lambda: list(gateway.membership.members) == ["b"])
        assert await placed(gateway) == {"b": 6}


async def test_a_drained_worker_finishes_what_it_has_and_gets_no_more_until_undrained() -> None:
    release = asyncio.Event()

    async def held(_: Received, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(JSON_OK)

    async with (
        FakeWorker(held, name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        operated(a, b) as (gateway, admin),
    ):
        await admin.post("/policy", json=ROBIN)
        waiting = [asyncio.create_task(ask(gateway, post())) for _ in range(2)]
        await until(lambda: len(a.received) == 1)
        drained = (await admin.post("/workers/a/drain")).json()
        assert (drained["status"], drained["num_requests"]) == ("draining", 1)
        assert await placed(gateway) == {"b": 6}
        release.set()
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        await admin.post("/workers/a/undrain")
        assert await placed(gateway) == {"a": 3, "b": 3}


async def test_a_removal_that_is_under_way_can_be_taken_back() -> None:
    async def never(_: Received, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001
        await asyncio.sleep(60)

    async with FakeWorker(never, name="a") as a, operated(a) as (gateway, admin):
        waiting = asyncio.create_task(ask(gateway, post()))
        await until(lambda: len(a.received) == 1)
        assert (await admin.delete("/workers/a")).json()["is_draining"]
        assert not (await admin.post("/workers/a/undrain")).json()["is_draining"]
        assert len(gateway.membership.ready()) == 1
        waiting.cancel()


async def test_another_policy_places_the_next_request() -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        operated(a, b) as (gateway, admin),
    ):
        same = post(json.dumps({"prompt": "the same prompt " * 100}).encode())
        before = {(await ask(gateway, same)).headers["x-expediter-worker"] for _ in range(4)}
        assert len(before) == 1
        answer = await admin.post("/policy", json=ROBIN)
        assert answer.json()["policy"] == "round-robin"
        after = {(await ask(gateway, same)).headers["x-expediter-worker"] for _ in range(4)}
        assert after == {"a", "b"}
        assert (await admin.get("/config")).json()["routing"]["policy"] == "round-robin"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/policy", b'{"policy": "best"}', 400, "Invalid enum value"),
        ("POST", "/policy", b'{"polcy": "slo"}', 400, "polcy"),
        ("POST", "/policy", b"[]", 400, "the body is not what is expected"),
        ("POST", "/policy", b'{"block-size": 32}', 400, "routing.block-size cannot change"),
        ("POST", "/policy", b" " * (2**20 + 1), 413, "too long"),
        ("POST", "/workers", b"{", 400, "the body is not what is expected"),
        ("POST", "/workers", b'{"url": 1}', 400, "Expected `str`"),
        ("POST", "/workers", b'{"url": "http://x", "worker-id": "a"}', 400, "called 'a'"),
        ("POST", "/workers/nobody/drain", b"", 404, "no worker 'nobody'"),
        ("DELETE", "/workers/nobody", b"", 404, "no worker 'nobody'"),
        ("GET", "/nothing", b"", 404, "Not Found"),
        ("PUT", "/policy", b"", 405, "Method Not Allowed"),
    ],
)
async def test_what_cannot_be_done_is_said_and_changes_nothing(
    method: str, path: str, body: bytes, status: int, says: str
) -> None:
    async with FakeWorker(always(JSON_OK), name="a") as a, operated(a) as (gateway, admin):
        before = (await admin.get("/config")).json()
        answer = await admin.request(method, path, content=body)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert says in error["message"]
        assert error["code"] == status
        assert (await admin.get("/config")).json() == before
        assert list(gateway.membership.members) == ["a"]


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN])
async def test_with_a_token_nothing_is_answered_without_it(given: str | None) -> None:
    headers = {"authorization": given} if given else {}
    async with operated(token=TOKEN) as (_, admin):
        for path in ("/health", "/metrics", "/config", "/nothing"):
            answer = await admin.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answer.text


async def test_with_the_token_everybody_is_let_in_and_the_token_is_not_shown() -> None:
    headers = {"authorization": f"bearer {TOKEN}", "host": "gateway.example:9000"}
    admin_config = AdminConfig(token=TOKEN)
    async with operated(token=TOKEN, admin=admin_config) as (_, admin):
        answer = await admin.get("/config", headers=headers)
        assert answer.status_code == 200
        assert answer.json()["admin"]["token"] == "(secret)"
        assert TOKEN not in answer.text
        assert (await admin.post("/policy", headers=headers, json=ROBIN)).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9000", "10.0.0.1", "localhost.evil.example", "[::1", ""]
)
async def test_without_a_token_a_name_that_points_here_is_refused(host: str) -> None:
    """A page whose own name was pointed at 127.0.0.1 sends that name."""
    async with operated() as (_, admin):
        assert (await admin.get("/workers", headers={"host": host})).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1", "[::1]:9000"])
async def test_loopback_names_are_let_in(host: str) -> None:
    async with operated() as (_, admin):
        assert (await admin.get("/workers", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://[", "http://127.0.0.1"])
async def test_without_a_token_pages_of_other_origins_change_nothing(origin: str) -> None:
    async with operated() as (gateway, admin):
        answer = await admin.post("/policy", json=ROBIN, headers={"origin": origin})
        assert answer.status_code == 403
        assert gateway.config.routing.policy == "slo"
        own = {"origin": str(admin.base_url).rstrip("/")}
        assert (await admin.post("/policy", json=ROBIN, headers=own)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "gateway.example"])
async def test_without_a_token_it_may_only_be_on_loopback(host: str) -> None:
    async with operated() as (gateway, _):
        app = create_admin_app(gateway)
        with pytest.raises(ConfigError, match="a token is needed"):
            AdminServer(app, AdminConfig(host=host), gateway_port=1)
        AdminServer(app, AdminConfig(host=host, token=TOKEN), gateway_port=1)


async def test_a_port_that_is_taken_is_an_error_if_asked_for_and_else_another_is_found() -> None:
    async with operated() as (gateway, admin):
        taken = admin.base_url.port
        app = create_admin_app(gateway)
        asked = AdminServer(app, AdminConfig(port=taken), gateway_port=1)
        with pytest.raises(ConfigError, match="cannot listen on"):
            await asked.start()
        assert taken is not None
        found = AdminServer(app, AdminConfig(), gateway_port=taken - 1000)
        await found.start()
        try:
            assert found.port != taken
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{found.port}/health")
                assert answer.status_code == 200
        finally:
            await found.stop()


async def test_a_worker_named_by_its_address_can_be_drained_by_it() -> None:
    async with FakeWorker(always(JSON_OK)) as worker, operated() as (gateway, admin):
        await admin.post("/workers", json={"url": f"http://127.0.0.1:{worker.port}"})
        name = f"127.0.0.1:{worker.port}"
        assert (await admin.post(f"/workers/{name}/drain")).json()["worker_id"] == name
        assert gateway.membership.members[name].is_draining  # type: ignore[index]
        secret = WorkerEndpoint(url="http://user:password@127.0.0.1:1")
        await admin.post("/workers", json={"url": secret.url, "worker-id": "s"})
        assert "password" not in (await admin.get("/config")).text
