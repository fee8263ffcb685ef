"""One line a request: what it says, and what it never says."""

import asyncio
import json
import logging
from datetime import datetime
from pathlib import Path

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
    get,
    hang_up,
    post,
    until,
)
from operated import lines_of, operated

from expediter.config import AccessLogConfig, TenancyConfig, TenantConfig
from expediter.errors import ConfigError
from expediter.gateway.access_log import AccessLog
from expediter.gateway.tenants import hash_key

PROMPT = "the secret of the prompt"
CACHED = b'"prompt_tokens_details":{"cached_tokens":8}'
USAGE = b'{"usage":{"prompt_tokens":9,"completion_tokens":4,%b}}' % CACHED
ANSWER = OK + b"content-length: %d\r\n\r\n%b" % (len(USAGE), USAGE)
FIELDS = (
    *("time", "request_id", "client", "tenant", "method", "path", "slo_class", "model"),
    *("worker", "reason", "tries", "status", "error", "prompt_tokens", "matched_tokens"),
    *("cached_tokens", "output_tokens", "ttft_seconds", "total_seconds", "bytes"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def logged(path: Path) -> AccessLogConfig:
    return AccessLogConfig(path=str(path))


def text_of(path: Path) -> str:
    return path.read_text("utf-8")


def mode_of(path: Path) -> int:
    return path.stat().st_mode


def body_of(**fields: object) -> bytes:
    return json.dumps({"prompt": PROMPT, **fields}).encode()


async def test_a_line_says_who_asked_what_where_it_went_and_how_it_ended(path: Path) -> None:
    async with (
        FakeWorker(always(ANSWER), name="a") as a,
        operated(a, access_log=logged(path)) as (gateway, _),
    ):
        headers = "X-Request-Id: r1\r\nX-SLO-Class: fast\r\nAuthorization: Bearer client-key\r\n"
        answer = await ask(gateway, post(body_of(model="m"), headers=headers))
        await ask(gateway, get("/health"))
    [line] = lines_of(path)
    assert tuple(line) == FIELDS
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert line["request_id"] == "r1" == answer.headers.get("x-request-id")
    said = {name: line[name] for name in ("client", "method", "path", "slo_class", "model")}
    assert list(said.values()) == ["127.0.0.1", "POST", "/v1/completions", "fast", "m"]
    assert (line["worker"], line["reason"], line["tries"]) == ("a", "no-match", 1)
    assert (line["status"], line["error"], line["tenant"]) == (200, None, None)
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (9, 8, 4)
    assert line["bytes"] == len(USAGE)
    assert 0 <= line["ttft_seconds"] <= line["total_seconds"]
    text = text_of(path)
    assert PROMPT not in text
    assert "client-key" not in text
    assert mode_of(path) & 0o007 == 0


async def test_errors_and_retries_have_their_lines_too(path: Path) -> None:
    async with (
        FakeWorker(hang_up(), name="a") as dead,
        operated(dead, access_log=logged(path)) as (gateway, _),
    ):
        assert (await ask(gateway, post(body_of()))).status == 502
        await ask(gateway, post(b'{"kv_transfer_params": {}}'))
        gateway.membership.drain("a")  # type: ignore[arg-type]
        assert (await ask(gateway, post(body_of()))).status == 503
    lost, refused, unplaced = lines_of(path)
    assert (lost["status"], lost["error"], lost["worker"]) == (502, "worker_lost", "a")
    assert lost["ttft_seconds"] is None
    assert (refused["status"], refused["worker"], refused["tries"]) == (400, None, 0)
    assert (unplaced["status"], unplaced["error"]) == (503, "service_unavailable")


async def test_a_stream_that_breaks_off_has_its_status_and_its_error(path: Path) -> None:
    async with (
        FakeWorker(hang_up(SSE_HEAD + chunk(b"data: 1\n\n"))) as worker,
        operated(worker, access_log=logged(path)) as (gateway, _),
    ):
        await ask(gateway, post(body_of()))
    [line] = lines_of(path)
    assert (line["status"], line["error"]) == (200, "worker_lost")


async def test_a_client_that_left_before_an_answer_is_499(path: Path) -> None:
    async def never(_: Received, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001
        await asyncio.sleep(60)

    async with FakeWorker(never) as worker, operated(worker, access_log=logged(path)) as (g, _):
        async with client_of(g) as client:
            client.send(post(body_of()))
            await until(lambda: len(worker.received) == 1)
        await until(lambda: worker.num_hung_up == 1)
    [line] = lines_of(path)
    assert (line["status"], line["worker"], line["ttft_seconds"]) == (499, "w", None)
    assert line["error"] == "aborted"


async def test_a_client_that_left_within_a_stream_has_its_status_and_what_it_got(
    path: Path,
) -> None:
    piece = chunk(b"data: 1\n\n")

    async def endless(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        while True:
            writer.write(piece)
            await asyncio.sleep(0.005)

    async with FakeWorker(endless) as worker, operated(worker, access_log=logged(path)) as (g, _):
        async with client_of(g) as client:
            client.send(post(body_of()))
            await client.reader.readuntil(piece * 2)
        await until(lambda: worker.num_hung_up == 1)
    [line] = lines_of(path)
    assert (line["status"], line["error"]) == (200, "aborted")
    assert line["bytes"] >= len(piece * 2)
    assert line["ttft_seconds"] is not None


async def test_tenants_are_named_and_their_keys_are_not(path: Path) -> None:
    tenant = TenantConfig(tenant_id="one", keys=(hash_key("k-e-y"),), cache_salt="0123456789abcdef")
    async with (
        FakeWorker(always(ANSWER)) as worker,
        operated(worker, tenancy=TenancyConfig(tenants=(tenant,)), access_log=logged(path)) as (
            gateway,
            admin,
        ),
    ):
        for key in ("k-e-y", "wrong-key"):
            headers = f"Authorization: Bearer {key}\r\n"
            await ask(gateway, post(body_of(), headers=headers))
        assert "sha256" not in (await admin.get("/config")).text
    known, unknown = lines_of(path)
    assert (known["tenant"], known["slo_class"], known["status"]) == ("one", "one", 200)
    assert (unknown["tenant"], unknown["status"], unknown["worker"]) == (None, 401, None)
    text = text_of(path)
    assert not any(secret in text for secret in ("k-e-y", "wrong-key", "0123456789abcdef", PROMPT))


async def test_scores_of_all_candidates_are_in_a_header_at_debug_level_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        FakeWorker(always(JSON_OK), name="a") as a,
        FakeWorker(always(JSON_OK), name="b") as b,
        operated(a, b) as (quiet, _),
    ):
        assert "x-expediter-scores" not in (await ask(quiet, post(body_of()))).headers
        with caplog.at_level(logging.DEBUG, logger="expediter"):
            async with operated(a, b) as (gateway, _):
                answer = await ask(gateway, post(body_of()))
        scores = json.loads(answer.headers["x-expediter-scores"])
        assert set(scores) == {"a", "b"}
        assert answer.headers["x-expediter-worker"] in scores
        assert PROMPT not in caplog.text


async def test_lines_of_several_writers_never_mix(path: Path) -> None:
    async with (
        FakeWorker(always(ANSWER)) as worker,
        operated(worker, access_log=logged(path)) as (one, _),
        operated(worker, access_log=logged(path)) as (two, _),
    ):
        asked = [ask(gateway, post(body_of())) for _ in range(20) for gateway in (one, two)]
        await asyncio.gather(*asked)
    assert len(lines_of(path)) == 40


def test_a_log_that_cannot_be_opened_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/access\.log cannot be opened: No such file"):
        AccessLog("/nowhere/access.log")
    with pytest.raises(ConfigError, match="Is a directory"):
        AccessLog(str(tmp_path))


async def test_a_full_disk_loses_lines_and_no_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        FakeWorker(always(ANSWER)) as worker,
        operated(worker, access_log=AccessLogConfig(path="/dev/full")) as (gateway, _),
    ):
        assert (await ask(gateway, post(body_of()))).status == 200
        gateway.reopen_logs()
        gateway.reopen_logs()
        assert caplog.text.count("lines are lost: [Errno 28]") == 1
