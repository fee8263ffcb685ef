"""The files in deploy/ say what the gateway has: metrics, settings, paths, ports."""

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_worker import JSON_OK, FakeWorker, always, ask, post, until
from operated import operated, reports_load
from prometheus_client.parser import text_string_to_metric_families

from expediter.config import GatewayConfig, HealthConfig
from expediter.gateway.observations import SECONDS, TOKEN_SECONDS
from expediter.settings import load_config

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\b(?:expediter|process)_[a-z_]+")
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "unknown": ("",),
}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana" / "expediter.json").read_text("utf-8"))
    return loaded


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


async def exported() -> dict[str, tuple[str, ...]]:
    """The names of samples by the metric's, in a real scrape."""
    async with FakeWorker(always(JSON_OK), name="a") as a, operated(a) as (gateway, admin):
        await ask(gateway, post())
        page = (await admin.get("/metrics")).text
    return {
        family.name: tuple(family.name + suffix for suffix in SUFFIXES[family.type])
        for family in text_string_to_metric_families(page)
    }


async def test_the_dashboard_and_the_gateway_have_the_same_metrics(
    dashboard: dict[str, Any],
) -> None:
    shown = {name for query in queries(dashboard) for name in METRIC.findall(query)}
    families = await exported()
    assert shown - {name for names in families.values() for name in names} == set()
    ours = {name: names for name, names in families.items() if name.startswith("expediter_")}
    assert [name for name, names in ours.items() if not shown & set(names)] == []


async def test_labels_in_the_dashboard_are_those_that_the_metrics_have(
    dashboard: dict[str, Any],
) -> None:
    """All that is shown by one label; those that Prometheus adds aside."""
    health = HealthConfig(load_interval_seconds=0.05)
    async with FakeWorker(reports_load) as w, operated(w, health=health) as (gateway, admin):
        await until(lambda: all(m.load is not None for m in gateway.membership.members.values()))
        await ask(gateway, post(headers="X-SLO-Class: fast\r\n"))
        await ask(gateway, post(b'{"kv_transfer_params": {}}'))
        page = (await admin.get("/metrics")).text
    labels = {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    grouped = re.compile(r"by \(([^)]*)\) \((?:rate\()?(\w+)")
    found = [pair for query in queries(dashboard) for pair in grouped.findall(query)]
    assert len(found) > 30
    without = {"expediter_fallbacks_total"}  # there are none without pairs
    for by, name in found:
        if name not in without:
            assert set(by.split(", ")) <= labels[name], name


def test_panels_have_names_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_service_levels_that_can_be_chosen_are_bounds_of_buckets(
    dashboard: dict[str, Any],
) -> None:
    chosen = {each["name"]: each.get("query") for each in dashboard["templating"]["list"]}
    assert set(chosen["ttft"].split(",")) <= set(map(str, SECONDS))
    assert set(chosen["tpot"].split(",")) <= set(map(str, TOKEN_SECONDS))


def example() -> GatewayConfig:
    return load_config(DEPLOY / "gateway.toml", environ=secrets()).gateway


def secrets() -> dict[str, str]:
    return {"EXPEDITER_GATEWAY__ADMIN__TOKEN": "0123456789abcdef"}


def test_the_example_of_settings_can_be_used() -> None:
    config = example()
    assert len(config.workers) == 3
    assert config.tenancy is not None
    assert config.admin.token is not None
    assert load_config(DEPLOY / "gateway.toml", environ={}).gateway.admin.token is None


def test_the_unit_runs_the_command_and_outlasts_its_shutdown() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "systemd" / "expediter.service").read_text("utf-8"))
    service = unit["Service"]
    assert service["ExecStart"].split()[1:3] == ["serve", "--config"]
    assert float(service["TimeoutStopSec"]) > example().shutdown_seconds
    log = example().access_log
    assert log is not None
    assert Path(log.path).parent == Path("/var/log") / service["LogsDirectory"]


def test_the_manifest_agrees_with_the_settings_in_it(tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes" / "gateway.yaml").read_text("utf-8")
    found = {each["kind"]: each for each in yaml.safe_load_all(text)}
    path = tmp_path / "gateway.toml"
    path.write_text(found["ConfigMap"]["data"]["gateway.toml"], "utf-8")
    config = load_config(path, environ=secrets()).gateway
    pod = found["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.port, "admin": config.admin.port}
    assert set(secrets()) == {variable["name"] for variable in container["env"]}
    assert pod["terminationGracePeriodSeconds"] > config.shutdown_seconds
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert Path(container["args"][-1]).parent.as_posix() in mounted
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    [rule] = found["Role"]["rules"]
    assert rule["resources"] == ["endpointslices"]


def test_prometheus_is_told_the_admin_port() -> None:
    told = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text("utf-8"))
    [job] = told["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"127.0.0.1:{example().admin.port}"]
