"""The dashboard's pages and its stream of snapshots."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from fake_worker import OK, FakeWorker, always, ask, post, until
from operated import served
from paged import paged
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from expediter.config.routing import PolicyName
from expediter.dashboard.events import MAX_LISTENERS, Events, Snapshots
from expediter.dashboard.later import made_later
from expediter.gateway.processes_operator import ProcessUnavailable
from expediter.gateway.reports import Json
from expediter.pages import STATIC

TOKEN = "0123456789abcdef"
BEARER = {"authorization": f"Bearer {TOKEN}"}
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def answer(usage: object) -> bytes:
    body = json.dumps({"usage": usage}).encode()
    return OK + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def snapshots(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_a_snapshot_tells_of_workers_requests_and_what_was_cached() -> None:
    async with FakeWorker(always(answer(USAGE)), name="a") as a, paged(a) as fleet:
        await ask(fleet.gateway, post(b'{"prompt":"hello"}'))
        async with fleet.client.stream("GET", "/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            snapshot = await anext(snapshots(response))
    [worker] = snapshot["stats"]["workers"]
    assert (worker["worker_id"], worker["status"], worker["role"]) == ("a", "up", "both")
    [decision] = snapshot["decisions"]
    assert (decision["worker"], decision["cached_tokens"], decision["status"]) == ("a", 64, 200)
    assert list(decision["stages"]) == ["read", "place", "first_token", "answer"]
    assert "scores" not in decision
    assert snapshot["summary"]["num_answers"] == 1
    assert snapshot["summary"]["actual"] == pytest.approx(0.64)
    assert snapshot["by_time"]["num_answers"][-1] == 1


async def test_what_several_prompts_share_is_in_the_snapshot_with_its_holders() -> None:
    async with FakeWorker(always(answer(USAGE)), name="a") as a, paged(a) as fleet:
        for end in "xy":
            prompt = "shared " * 100 + end * 400
            await ask(fleet.gateway, post(json.dumps({"prompt": prompt}).encode()))
        async with fleet.client.stream("GET", "/events") as response:
            snapshot = await anext(snapshots(response))
    [prefix] = snapshot["prefixes"]
    assert (prefix["num_tokens"], prefix["num_requests"], prefix["workers"]) == (128, 2, ["a"])


async def test_the_stream_ends_with_the_gateway_and_that_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeWorker(always(answer(USAGE))) as worker, paged(worker) as fleet:
        async with fleet.client.stream("GET", "/events") as response:
            stream = snapshots(response)
            await anext(stream)
            stopping = asyncio.create_task(fleet.admin.stop())
            rest = [snapshot async for snapshot in stream]
        await stopping
    assert len(rest) <= 1
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


class CountingOperator:
    """Answers as an empty fleet does, and counts how often it is asked."""

    num_asked = 0
    is_down = False

    async def stats(self) -> Json:
        self.num_asked += 1
        if self.is_down:
            raise ProcessUnavailable("gateway process 1 did not answer")
        return {}

    async def decisions(self, _: int) -> list[Json]:
        return []

    async def activity(self) -> Json:
        return {"answers": [], "prefixes": []}


async def test_listeners_are_limited_and_those_that_leave_make_room() -> None:
    async def serve(events: Events) -> Response:
        app = Starlette()
        app.state.closing = asyncio.Event()
        return await events.serve(Request({"type": "http", "app": app}))

    operator = CountingOperator()
    events = Events(Snapshots(operator, clock=lambda: 0.0))  # type: ignore[arg-type]
    streams = [events.stream(asyncio.Event()) for _ in range(MAX_LISTENERS)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(HTTPException, match="32 pages"):
        await serve(events)
    await streams[0].aclose()
    assert (await serve(events)).status_code == 200
    for stream in streams[1:]:
        await stream.aclose()
    assert events.num_listeners == 0


async def test_many_pages_cost_what_one_costs() -> None:
    operator, now = CountingOperator(), [0.0]
    made = Snapshots(operator, clock=lambda: now[0])  # type: ignore[arg-type]
    found = await asyncio.gather(*(made.newest() for _ in range(50)))
    assert (len(set(found)), operator.num_asked) == (1, 1)
    now[0] = 1.0
    await made.newest()
    assert operator.num_asked == 2


async def test_a_process_that_does_not_answer_is_said_and_the_next_snapshot_is_tried() -> None:
    operator, now = CountingOperator(), [0.0]
    made = Snapshots(operator, clock=lambda: now[0])  # type: ignore[arg-type]
    operator.is_down = True
    assert json.loads(await made.newest()) == {"problem": "gateway process 1 did not answer"}
    operator.is_down, now[0] = False, 1.0
    assert "summary" in json.loads(await made.newest())


async def test_pages_need_no_token_and_what_they_ask_does() -> None:
    async with (
        FakeWorker(always(answer(USAGE))) as worker,
        paged(worker, token=TOKEN) as fleet,
    ):
        assert (await fleet.client.get("/")).headers["location"] == "/dashboard"
        for page in ("/dashboard", "/playground", "/static/dashboard/main.js"):
            response = await fleet.client.get(page)
            assert response.status_code == 200
            assert "default-src 'self'" in response.headers["content-security-policy"]
        for closed in (
            "/events",
            "/activity",
            "/stats",
            "/playground/models",
            "/dashboard/../stats",
        ):
            assert (await fleet.client.get(closed)).status_code == 401
        assert (await fleet.client.post("/dashboard")).status_code == 401
        assert (await fleet.client.get("/activity", headers=BEARER)).status_code == 200


async def test_no_file_outside_the_pages_can_be_fetched() -> None:
    async with FakeWorker(always(answer(USAGE))) as worker, paged(worker) as fleet:
        for path in ("/static/..%2f..%2fcli%2fapp.py", "/static/%2e%2e/settings.py", "/static/"):
            assert (await fleet.client.get(path)).status_code == 404


def test_pages_name_no_other_host_and_no_inline_script_or_style() -> None:
    own = [*STATIC.glob("*.html"), *(STATIC / "dashboard").iterdir()]
    assert len(own) > 8
    for path in own:
        text = path.read_text("utf-8")
        assert not re.search(r"""(?:src|href|import|url)\W{0,4}https?:""", text), path
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text), path


def test_the_page_offers_every_policy() -> None:
    text = (STATIC / "dashboard" / "workers.js").read_text("utf-8")
    block = text.partition("POLICIES = {")[2].partition("};")[0]
    offered = re.findall(r'^  "?([a-z0-9-]+)"?:', block, re.MULTILINE)
    assert sorted(offered) == sorted(get_args(PolicyName))


def test_every_file_that_a_page_names_is_there() -> None:
    for page in STATIC.glob("*.html"):
        for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.read_text("utf-8")):
            assert (STATIC.parent / Path(name[1:])).is_file(), name


async def test_drained_on_the_page_is_drained() -> None:
    async with (
        FakeWorker(always(answer(USAGE)), name="a/b") as a,
        FakeWorker(always(answer(USAGE)), name="c") as c,
        paged(a, c) as fleet,
    ):
        drained = await fleet.client.post("/workers/a%2Fb/drain")
        assert drained.json()["status"] == "draining"
        await until(lambda: len(fleet.gateway.membership.ready()) == 1)


async def test_routes_that_take_long_to_make_are_made_once_when_first_asked_for() -> None:
    num_made = 0

    def make() -> list[Route]:
        nonlocal num_made
        num_made += 1
        return [Route("/slow/a", lambda _: PlainTextResponse("found"))]

    app = Starlette(routes=[made_later("/slow/{name}", make)])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert num_made == 0
        found = await asyncio.gather(*(client.get("/slow/a") for _ in range(5)))
        assert ({each.text for each in found}, num_made) == ({"found"}, 1)
        assert (await client.get("/slow/b")).status_code == 404


async def test_several_processes_are_one_fleet_on_the_page(tmp_path: Path) -> None:
    async with FakeWorker(always(answer(USAGE)), name="a") as a:
        settings = {"gateway": {"workers": [{"url": a.endpoint.url, "worker-id": "a"}]}}
        async with served(tmp_path, settings, "--processes", "2", num_workers=1) as gateway:
            for _ in range(8):
                await gateway.ask(prompt="the same beginning " * 60)
            async with gateway.admin.stream("GET", "/events") as response:
                snapshot = await anext(snapshots(response))
            assert (await gateway.admin.get("/dashboard")).status_code == 200
    assert snapshot["stats"]["num_processes"] == 2
    assert snapshot["summary"]["num_answers"] == 8
    [prefix] = snapshot["prefixes"]
    assert (prefix["num_tokens"], prefix["workers"]) == (256, ["a"])
    assert prefix["num_requests"] in (7, 8)  # a process that had one request saw nothing shared
