"""The lab's addresses: answers, refusals, headers, and the processes behind them."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from expediter.assemble.policies import build_policy
from expediter.lab.demo import FAST_POLICIES
from expediter.lab.pool import LabFailed, Pool
from expediter.lab.routes import create_lab_app, create_lab_routes


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_lab_app(build_policy=build_policy)) as client:
        yield client


def get(client: TestClient, path: str, **query: object) -> Any:
    response = client.get(f"/api/lab/{path}", params={k: str(v) for k, v in query.items()})
    assert response.status_code == 200, response.text
    return response.json()


def test_routing_answers_for_all_five_policies(client: TestClient) -> None:
    found = get(client, "routing", replicas=4)
    assert [each["policy"] for each in found] == list(FAST_POLICIES)
    assert all(len(each["computed"]) == 4 for each in found)


def test_real_text_and_the_gateway_s_policies_are_answered_too(client: TestClient) -> None:
    published = get(client, "routing")[FAST_POLICIES.index("cache-aware")]
    blocks = get(client, "routing", form="blocks")[FAST_POLICIES.index("cache-aware")]
    assert blocks["hit_rate"] < published["hit_rate"]
    assert get(client, "policy", policy="power-of-two")["policy"] == "power-of-two"


def test_transfers_and_bursts_are_answered(client: TestClient) -> None:
    assert get(client, "transfer", prompt=16000)["kv_bytes"] == 16000 * 327_680
    found = get(client, "burst", policy="cache-aware", seconds=4, rate=40)
    assert [each["label"] for each in found["classes"]] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("path", "query", "param", "message"),
    [
        ("routing", {"replicas": "0"}, "replicas", "replicas: Expected `int` >= 1"),
        ("routing", {"skew": "steep"}, "skew", "skew: Expected `float`, got `str`"),
        ("routing", {"skew": "nan"}, "skew", "skew: "),
        ("routing", {"form": "radix"}, "form", "form: Invalid enum value 'radix'"),
        ("routing", {"policy": "best"}, None, "policy: 'best' is not one of random, round-robin"),
        ("routing", {"colour": "red"}, None, "unknown field `colour`"),
        ("transfer", {"link": "rope"}, None, "link: 'rope' is not one of nvlink4"),
        ("transfer", {"model": "/etc/passwd"}, None, "model: '/etc/passwd' is not one of"),
        ("burst", {"seconds": "3600"}, "seconds", "seconds: Expected `float` <= 30"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    client: TestClient, path: str, query: dict[str, str], param: str | None, message: str
) -> None:
    response = client.get(f"/api/lab/{path}", params=query)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_every_control_of_the_page_has_a_default_within_its_range(client: TestClient) -> None:
    for controls in get(client, "choices")["controls"].values():
        for control in controls.values():
            if "min" in control:
                assert control["min"] <= control["default"] <= control["max"]


@pytest.mark.parametrize(
    "path", ["/", "/lab", "/static/lab/main.js", "/static/theme.css", "/api/lab/choices"]
)
def test_nothing_may_be_loaded_from_elsewhere(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.headers["content-security-policy"].startswith("default-src 'self';")
    assert response.headers["x-content-type-options"] == "nosniff"


def test_files_outside_the_page_are_not_served(client: TestClient) -> None:
    assert client.get("/static/../lab/routes.py").status_code == 404
    assert client.get("/static/%2e%2e/lab/routes.py").status_code == 404


def test_the_routes_work_within_another_application() -> None:
    pool = Pool()
    app = Starlette(routes=create_lab_routes(build_policy=build_policy, pool=pool))
    try:
        with TestClient(app) as client:
            assert client.get("/lab").status_code == 200
            assert get(client, "routing", conversations=50)
    finally:
        pool.close()


async def test_a_process_that_dies_fails_one_question_and_no_more() -> None:
    pool = Pool()
    try:
        with pytest.raises(LabFailed, match="try again"):
            await pool.ask("quick", _die)
        assert await pool.ask("quick", abs, -3) == 3
    finally:
        pool.close()


def _die() -> None:
    os._exit(1)


async def test_what_was_answered_is_not_computed_again() -> None:
    pool = Pool()
    try:
        first = await pool.ask("quick", _process_and, 1)
        pool.close()
        assert await pool.ask("quick", _process_and, 1) == first
        assert await pool.ask("quick", _process_and, 2) != first
    finally:
        pool.close()


def _process_and(number: int) -> tuple[int, int]:
    return os.getpid(), number
