"""Advice from a gateway's traffic, on traffic whose best fleet is plain."""

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from expediter.assemble.policies import build_policy
from expediter.cli.app import app
from expediter.cluster.traffic import TrafficLog
from expediter.errors import ConfigError
from expediter.planner.settings import WatchConfig
from expediter.planner.watch import advice, options, read_traffic, replay_all
from expediter.routing.prompt import token_prompt

NOW = 1000.0
NUM_SESSIONS = 12


def traffic(*, num: int = 240, rate: float = 4.0) -> bytes:
    """Sessions of 6,000 tokens of their own, each of which comes again and again."""
    log, rng, at = TrafficLog(clock=lambda: NOW), random.Random(1), NOW - 300.0
    prompts = [token_prompt([session] * 6000) for session in range(NUM_SESSIONS)]
    for prompt in prompts:
        prompt.keys(16)
    for _ in range(num):
        at += rng.expovariate(rate)
        log.add(rng.choice(prompts), arrived_at=at, num_prompt_tokens=6000, num_output_tokens=20)
    return log.jsonl(seconds=600)


def config(**changes: object) -> WatchConfig:
    settings: dict[str, object] = {
        "gateway": "http://127.0.0.1:1",
        "ttft": 0.5,
        "tpot": 0.1,
        "cost": "linear",
        "cache_tokens": 100_000,
        "policies": ("cache-aware", "round-robin"),
        "max_workers": 4,
        "block_size": 512,
    }
    return WatchConfig(**settings | changes)  # type: ignore[arg-type]


def test_what_is_tried_has_the_fleet_as_it_is_first_and_every_split() -> None:
    tried = options(config(), policy="round-robin", num_workers=3)
    assert tried[0].is_current
    assert [option.deployment.name for option in tried if option.deployment.decode] == [
        "1 x TP1 + 2 x TP1",
        "2 x TP1 + 1 x TP1",
    ]
    sizes = {o.deployment.prefill.num_instances for o in tried if o.deployment.decode is None}
    assert sizes == {1, 2, 3, 4}
    assert len([option for option in tried if option.is_current]) == 1


def test_sessions_that_fit_one_cache_each_need_a_policy_that_knows_them() -> None:
    """12 sessions of 6,000 tokens do not fit one cache of 100,000 with room to spare, nor four
    copies of them four: round robin computes most prompts, cache-aware routing hardly any."""
    settings = config(max_workers=3, splits=False)
    turns = read_traffic(lambda _: traffic(), settings)
    tried = options(settings, policy="round-robin", num_workers=3)
    found = replay_all(settings, turns, tried, build_policy=build_policy)
    now = found[0]
    aware = next(
        each
        for each in found
        if each.option.policy == "cache-aware" and each.num_gpus == now.num_gpus
    )
    assert aware.ttft < 0.7 * now.ttft
    best = advice(found, settings)
    assert best.option.policy == "cache-aware"
    assert best.num_gpus < now.num_gpus
    assert best.attainment.lowest >= settings.share


def test_equal_fleets_are_left_as_they_are() -> None:
    settings = config(ttft=30.0, max_workers=1)
    turns = read_traffic(lambda _: traffic(num=60, rate=0.5), settings)
    tried = options(settings, policy="cache-aware", num_workers=1)
    found = replay_all(settings, turns, tried, build_policy=build_policy)
    assert advice(found, settings) is found[0]


@pytest.mark.parametrize("content", [b"", traffic(num=10)])
def test_too_little_traffic_is_no_ground_for_advice(content: bytes) -> None:
    with pytest.raises(ConfigError, match="it takes 50 to say anything"):
        read_traffic(lambda _: content, config())


class _AdminPort(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer secret":
            self.send_error(401)
            return
        stats = json.dumps({"policy": "round-robin", "workers": [{}, {}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(stats if self.path == "/stats" else traffic(num=80))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args


@pytest.fixture
def admin_port() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _AdminPort)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def watch(url: str, *more: str) -> str:
    line = f"plan watch --gateway {url} --ttft 0.5 --tpot 0.1 --cost linear --max-workers 2"
    line += " --cache-tokens 100000 --set processes=1"
    result = CliRunner().invoke(app, [*line.split(), *more])
    return result.output + str(result.exception or "")


def test_the_command_says_what_to_change(admin_port: str, tmp_path: Path) -> None:
    out = tmp_path / "advice.json"
    said = watch(admin_port, "--token", "secret", "--json", str(out))
    assert "80 requests of the last 600 s, replayed" in said
    assert "round-robin (now)" in said
    rows = json.loads(out.read_bytes())
    assert [row["is_best"] for row in rows].count(True) == 1


def test_a_gateway_that_wants_a_token_or_is_not_there_is_said(admin_port: str) -> None:
    assert "answered 401; it wants its token" in watch(admin_port)
    assert "cannot be reached" in watch("http://127.0.0.1:1")
    assert "is no URL" in watch("localhost")
