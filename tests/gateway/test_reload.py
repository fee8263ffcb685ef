"""SIGHUP reads the settings again, SIGUSR1 opens the log anew: `expediter serve` itself."""

import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from fake_worker import JSON_OK, FakeWorker, always, until
from operated import Served, lines_of, served

from expediter.gateway.tenants import hash_key

SALT = "0123456789abcdef"


def settings_for(*workers: FakeWorker, **more: Any) -> dict[str, Any]:
    """The settings in the file, at their shortest pauses."""
    endpoints = [{"url": w.endpoint.url, "worker-id": w.name} for w in workers]
    return {
        "gateway": {
            "workers": endpoints,
            "health-interval-seconds": 0.05,
            "shutdown-seconds": 1,
            "health": {"load-interval-seconds": 0},
            "routing": {"policy": "round-robin"},
            "admin": {"port": 0},
            **more,
        }
    }


def tenant(name: str, key: str, **limits: int) -> dict[str, Any]:
    return {"tenant-id": name, "keys": [hash_key(key)], "cache-salt": SALT + name, **limits}


async def placed(gateway: Served, num_requests: int = 4) -> Counter[str]:
    answers = [await gateway.ask(prompt=str(n)) for n in range(num_requests)]
    return Counter(answer.headers.get("x-expediter-worker", "nobody") for answer in answers)


async def knows(gateway: Served, num_workers: int) -> None:
    """Returns once so many workers, and no others, are up."""
    while True:
        workers = (await gateway.admin.get("/workers")).json()
        if [worker["status"] for worker in workers] == ["up"] * num_workers:
            return


async def test_workers_and_policy_are_as_the_file_says_now(tmp_path: Path) -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        served(tmp_path, settings_for(a), num_workers=1) as gateway,
    ):
        assert await placed(gateway) == {"a": 4}
        await gateway.reload(settings_for(a, b))
        await knows(gateway, 2)
        assert await placed(gateway) == {"a": 2, "b": 2}
        await gateway.reload(settings_for(b, routing={"policy": "least-loaded"}))
        await knows(gateway, 1)
        assert await placed(gateway) == {"b": 4}
        assert (await gateway.stats())["policy"] == "least-loaded"


async def test_a_bad_file_changes_nothing_and_one_that_needs_a_restart_the_rest(
    tmp_path: Path,
) -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        served(tmp_path, settings_for(a), num_workers=1) as gateway,
    ):
        before = (await gateway.admin.get("/config")).json()
        twice = settings_for(b)
        twice["gateway"]["workers"] *= 2
        await gateway.reload(twice)
        await gateway.reload(settings_for(b, routing={"policy": "best"}))
        await gateway.reload(settings_for(b, **{"access-log": {"path": "/nowhere/access.log"}}))
        unknown = {"tenants": [tenant("t", "k")], "key-file": "/nowhere/keys"}
        await gateway.reload(settings_for(b, tenancy=unknown))
        (tmp_path / "gateway.toml").write_text("[gateway", "utf-8")
        await gateway.reload()
        refused = re.findall("the settings stay as they were: (.*)", gateway.log)
        said = ["called 'b'", "policy", "/nowhere/access.log", "/nowhere/keys", "gateway.toml"]
        assert [each for each, line in zip(said, refused, strict=True) if each not in line] == []
        assert (await gateway.admin.get("/config")).json() == before
        assert await placed(gateway) == {"a": 4}
        await _reload_what_needs_a_restart(gateway, a)


async def _reload_what_needs_a_restart(gateway: Served, worker: FakeWorker) -> None:
    """It is named, and the rest is taken over."""
    routing = {"policy": "random", "block-size": 32}
    more = {"processes": 2, "max-body-bytes": 1000, "routing": routing, "idle-seconds": 7}
    await gateway.reload(settings_for(worker, **more))
    [named] = re.findall("these need a restart to change: (.*)", gateway.log)
    assert set(named.split(", ")) == {"processes", "max-body-bytes", "routing.block-size"}
    config = (await gateway.admin.get("/config")).json()
    assert config["routing"]["policy"] == "random"
    assert config["routing"]["block-size"] == 16
    assert (config["idle-seconds"], config["processes"]) == (7, 1)
    await gateway.reload()
    assert len(re.findall("need a restart", gateway.log)) == 2, "as long as it is so"


async def test_what_was_changed_by_hand_stays_until_the_file_says_something_new(
    tmp_path: Path,
) -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        served(tmp_path, settings_for(a, b), num_workers=2) as gateway,
    ):
        await gateway.admin.post("/policy", json={"policy": "random"})
        await gateway.admin.post("/workers/a/drain")
        await gateway.reload(settings_for(a, b, **{"idle-seconds": 9}))
        assert (await gateway.stats())["policy"] == "random"
        assert await placed(gateway) == {"b": 4}
        await gateway.reload(settings_for(a, b, routing={"policy": "least-loaded"}))
        assert (await gateway.stats())["policy"] == "least-loaded"


async def test_a_worker_that_moves_is_replaced_under_its_name(tmp_path: Path) -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as old,
        FakeWorker(always(JSON_OK), name="a") as new,
        served(tmp_path, settings_for(old), num_workers=1) as gateway,
    ):
        await gateway.reload(settings_for(new))
        await until(lambda: new.num_connections > 0)
        await knows(gateway, 1)
        await placed(gateway)
        assert (len(old.received), len(new.received)) == (0, 4)


async def test_tenants_keys_and_limits_change(tmp_path: Path) -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        served(tmp_path, settings_for(a), num_workers=1) as gateway,
    ):
        assert (await gateway.ask(prompt="x")).status_code == 200
        tenants = [tenant("one", "k", **{"requests-per-minute": 1})]
        await gateway.reload(settings_for(a, tenancy={"tenants": tenants}))
        assert (await gateway.ask(prompt="x")).status_code == 401
        assert (await gateway.ask(key="k", prompt="x")).status_code == 200
        assert (await gateway.ask(key="k", prompt="x")).status_code == 429
        tenants = [tenant("one", "k2", **{"requests-per-minute": 1}), tenant("two", "k")]
        await gateway.reload(settings_for(a, tenancy={"tenants": tenants}))
        assert (await gateway.ask(key="k2", prompt="x")).status_code == 429, "still used up"
        assert (await gateway.ask(key="k", prompt="x")).status_code == 200, "of two now"
        await gateway.reload(settings_for(a))
        assert (await gateway.ask(prompt="x")).status_code == 200


async def test_the_access_log_is_written_to_the_file_that_has_its_name(tmp_path: Path) -> None:
    path, moved = tmp_path / "access.log", tmp_path / "moved.log"
    settings = {"access-log": {"path": str(path)}}
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        served(tmp_path, settings_for(a, **settings), num_workers=1) as gateway,
    ):
        await gateway.ask(prompt="1")
        path.rename(moved)
        gateway.process.send_signal(signal.SIGUSR1)
        await until(path.exists)
        assert len(lines_of(moved)) == 1
        await gateway.ask(prompt="2")
        await gateway.ask(prompt="3")
        await until(lambda: len(lines_of(path)) == 2)
        other = tmp_path / "other.log"
        await gateway.reload(settings_for(a, **{"access-log": {"path": str(other)}}))
        await gateway.ask(prompt="4")
        await gateway.reload(settings_for(a))
        await until(lambda: len(lines_of(other)) == 1)
        await gateway.ask(prompt="5")
    assert (len(lines_of(path)), len(lines_of(other))) == (2, 1)
    assert gateway.process.returncode == 0
