"""Several gateway processes on one port: `expediter serve --processes 2` itself."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import tomli_w
from fake_worker import JSON_OK, FakeWorker, Received, always, until
from operated import Served, children, eventually, is_alive, lines_of, served
from prometheus_client.parser import text_string_to_metric_families
from test_reload import settings_for

NUM_REQUESTS = 40
"""That all connections go to one of two processes has a chance of 2 in 2 ** 40."""


def two(*workers: FakeWorker, **more: Any) -> dict[str, Any]:
    return settings_for(*workers, processes=2, **more)


async def processes_of(gateway: Served) -> set[int]:
    """Which processes have placed something."""
    decisions = (await gateway.admin.get("/decisions?limit=1000")).json()
    return {decision["process"] for decision in decisions}


async def all_answer(gateway: Served) -> bool:
    answer = await gateway.admin.get("/stats")
    return answer.status_code == 200 and answer.json()["num_answering"] == 2


async def test_requests_spread_reports_are_sums_and_load_is_shared(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        served(tmp_path, two(a, b, **{"access-log": {"path": str(log)}}), num_workers=2) as gateway,
    ):
        await eventually(lambda: all_answer(gateway))
        await asyncio.gather(*(gateway.ask(prompt=str(n)) for n in range(NUM_REQUESTS)))
        assert await processes_of(gateway) == {0, 1}
        stats = await gateway.stats()
        assert stats["requests"]["placed"] == NUM_REQUESTS
        assert stats["statuses"] == {"200": NUM_REQUESTS}
        assert sum(stats["latency"]["request_seconds"]["counts"]) == NUM_REQUESTS
        workers = (await gateway.admin.get("/workers")).json()
        assert [worker["worker_id"] for worker in workers] == ["a", "b"]
        assert sum(worker["total_requests"] for worker in workers) == NUM_REQUESTS
        counts = await metric(gateway, "expediter_requests_total")
        assert set(counts) == {"0", "1"}
        assert sum(counts.values()) == NUM_REQUESTS
        rows = (await gateway.admin.get("/trace")).text.splitlines()
        assert len(rows) == NUM_REQUESTS
        times = [json.loads(row)["timestamp"] for row in rows]
        assert times == sorted(times)
        await gateway.admin.post("/policy", json={"policy": "least-loaded"})
        await _hold_requests(gateway, a, b)
        await until(lambda: len(lines_of(log)) == 2 * NUM_REQUESTS)
    assert len({line["request_id"] for line in lines_of(log)}) == 2 * NUM_REQUESTS


async def metric(gateway: Served, name: str) -> dict[str, float]:
    """The sum of a metric's samples by process."""
    page = (await gateway.admin.get("/metrics")).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name:
                process = sample.labels["process"]
                found[process] = found.get(process, 0) + sample.value
    return found


async def _hold_requests(gateway: Served, a: FakeWorker, b: FakeWorker) -> None:
    """Held requests are evenly spread, though each process has only some of them."""
    release = asyncio.Event()

    async def held(_: Received, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(JSON_OK)

    a.script = b.script = held
    a.received.clear()
    b.received.clear()
    waiting = []
    for number in range(NUM_REQUESTS):
        waiting.append(asyncio.create_task(gateway.ask(prompt=str(number))))
        await until(lambda: len(a.received) + len(b.received) == len(waiting))
        assert abs(len(a.received) - len(b.received)) <= 1
        await asyncio.sleep(0.005)  # longer than what the others have may go unread
    in_flight = await metric(gateway, "expediter_requests_in_flight")
    assert sum(in_flight.values()) == NUM_REQUESTS
    assert min(in_flight.values()) > 0
    release.set()
    assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
    stats = await gateway.stats()
    assert stats["requests"]["in_flight"] == 0


async def test_a_killed_process_comes_back_with_the_orders_that_hold(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def held(_: Received, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(JSON_OK)

    async with (
        FakeWorker(held, name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        served(tmp_path, two(a), num_workers=1) as gateway,
    ):
        await eventually(lambda: all_answer(gateway))
        waiting = [
            asyncio.create_task(gateway.ask(prompt=str(number))) for number in range(NUM_REQUESTS)
        ]
        await until(lambda: len(a.received) == NUM_REQUESTS)
        added = await gateway.admin.post("/workers", json={"url": b.endpoint.url, "worker-id": "b"})
        assert added.status_code == 201
        assert (await gateway.admin.post("/workers/a/drain")).status_code == 200
        await gateway.admin.post("/policy", json={"policy": "least-loaded"})
        for pid in children(gateway.process.pid):
            os.kill(pid, signal.SIGKILL)
        lost = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, Exception) for each in lost), "their connections broke"
        await eventually(lambda: _has_orders(gateway))
        assert "ended with status -9; starting it again in 0.5 s" in gateway.log
        answers = await asyncio.gather(*(gateway.ask(prompt=str(n)) for n in range(NUM_REQUESTS)))
        assert {each.headers["x-expediter-worker"] for each in answers} == {"b"}
        workers = {each["worker_id"]: each for each in (await gateway.stats())["workers"]}
        assert workers["a"]["num_requests"] == 0, "what the dead had in flight is forgotten"
        assert workers["a"]["load_tokens"] == 0


async def _has_orders(gateway: Served) -> bool:
    """Whether both processes place by the orders."""
    if not await all_answer(gateway):
        return False
    config = (await gateway.admin.get("/config")).json()
    workers = (await gateway.admin.get("/workers")).json()
    statuses = {worker["worker_id"]: worker["status"] for worker in workers}
    draining = await metric(gateway, "expediter_worker_draining")
    up = await metric(gateway, "expediter_worker_up")
    return (
        config["routing"]["policy"] == "least-loaded"
        and "differing-processes" not in config
        and statuses.get("a") == "draining"
        and draining == up == {"0": 1.0, "1": 1.0}
    )


async def test_who_dies_again_is_waited_for_longer_and_all_leave_with_a_killed_parent(
    tmp_path: Path,
) -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        served(tmp_path, two(a, **{"access-log": {"path": "-"}}), num_workers=1) as gateway,
    ):
        await eventually(lambda: all_answer(gateway))
        first, other = children(gateway.process.pid)
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(_pauses(gateway)) == 1)
        stats = await gateway.stats()
        assert (stats["num_processes"], stats["num_answering"]) == (2, 1)
        order = (await gateway.admin.post("/policy", json={"policy": "random"})).json()
        assert order["pending_processes"] == [0] or order["pending_processes"] == [1]
        assert [(await gateway.ask(prompt="x")).status_code for _ in range(4)] == [200] * 4
        await until(lambda: len(lines_of(tmp_path / "out")) == 4)
        await until(lambda: len(children(gateway.process.pid)) == 2)
        again = max(set(children(gateway.process.pid)) - {other})
        os.kill(again, signal.SIGKILL)
        await until(lambda: len(_pauses(gateway)) == 2)
        assert _pauses(gateway) == ["0.5", "1"]
        pids = children(gateway.process.pid)
        gateway.process.kill()
        await until(lambda: not any(map(is_alive, pids)))


def _pauses(gateway: Served) -> list[str]:
    return re.findall(r"starting it again in (\S+) s", gateway.log)


async def test_signals_reach_every_process_and_a_stop_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    settings = {"access-log": {"path": str(log)}, "shutdown-seconds": 30}
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        served(tmp_path, two(a, **settings), num_workers=1) as gateway,
    ):
        await eventually(lambda: all_answer(gateway))
        gateway.write(two(b, **settings))
        log.rename(tmp_path / "old.log")
        gateway.process.send_signal(signal.SIGHUP)
        await until(lambda: gateway.log.count("settings were read again") == 2)
        await eventually(lambda: _only(gateway, "b"))
        answers = await asyncio.gather(*(gateway.ask(prompt=str(n)) for n in range(NUM_REQUESTS)))
        assert {each.headers["x-expediter-worker"] for each in answers} == {"b"}
        await until(lambda: len(lines_of(log)) == NUM_REQUESTS)
        (tmp_path / "gateway.toml").write_text("[gateway", "utf-8")
        await gateway.reload()
        assert await _only(gateway, "b")
        await _stop_with_a_request_under_way(gateway, b)


async def _stop_with_a_request_under_way(gateway: Served, worker: FakeWorker) -> None:
    """It is finished, and every process has left."""
    release = asyncio.Event()

    async def held(_: Received, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(JSON_OK)

    worker.script, num_received = held, len(worker.received)
    pids = children(gateway.process.pid)
    waiting = asyncio.create_task(gateway.ask(prompt="x"))
    await until(lambda: len(worker.received) > num_received)
    gateway.process.send_signal(signal.SIGTERM)
    release.set()
    assert (await waiting).status_code == 200
    assert await asyncio.to_thread(gateway.process.wait, 60) == 0
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


async def _only(gateway: Served, worker_id: str) -> bool:
    workers = (await gateway.admin.get("/workers")).json()
    return [(each["worker_id"], each["status"]) for each in workers] == [(worker_id, "up")]


async def test_processes_that_cannot_start_end_the_parent_with_an_error(tmp_path: Path) -> None:
    async with FakeWorker(always(JSON_OK), name="a") as a:
        settings = two(a, tokenizer=str(tmp_path / "nothing"))
        (tmp_path / "gateway.toml").write_text("", "utf-8")
        process = await asyncio.create_subprocess_exec(
            *_command(tmp_path, settings), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 1
        assert b"cannot start" in said
        assert str(tmp_path / "nothing").encode() in said


def _command(folder: Path, settings: dict[str, Any]) -> list[str]:

    (folder / "gateway.toml").write_text(tomli_w.dumps(settings), "utf-8")
    command = [sys.executable, "-m", "expediter", "serve", "--port", "0"]
    return [*command, "-c", str(folder / "gateway.toml")]
