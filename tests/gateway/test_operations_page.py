"""docs/operations.md names every path, metric and fixed setting there is."""

import re
from pathlib import Path

from fake_worker import JSON_OK, FakeWorker, always
from operated import operated
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from expediter.gateway.admin import create_admin_app
from expediter.gateway.reconfigure import FIXED, FIXED_ROUTING

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")


async def test_every_path_of_the_admin_port_is_on_the_page() -> None:
    async with operated() as (gateway, _):
        paths = [each.path for each in create_admin_app(gateway).routes if isinstance(each, Route)]
    wanted = [path.replace("{worker_id:path}", "ID") for path in paths]
    assert len(wanted) > 10
    assert [
        path for path in wanted if path not in PAGE and f"/{path.split('/')[-1]}`" not in PAGE
    ] == []


async def test_every_metric_is_on_the_page_and_no_other() -> None:
    async with FakeWorker(always(JSON_OK), name="a") as a, operated(a) as (_, admin):
        page = (await admin.get("/metrics")).text
    exported = {
        family.name.removeprefix("expediter_") + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(page)
        if family.name.startswith("expediter_")
    }
    table = PAGE.partition("after `expediter_`")[2].partition("\n\n")[0]
    named = {name for row in table.split("\n") for name in re.findall(r"`([a-z_]+)`", _first(row))}
    assert named == exported


def _first(row: str) -> str:
    """The first cell of a row."""
    return row.split("|")[1] if row.startswith("|") else ""


def test_every_setting_that_needs_a_restart_is_on_the_page() -> None:
    paragraph = PAGE.partition("What needs a restart (")[2].partition(")")[0]
    named = set(re.findall(r"`([a-z.-]+)`", paragraph))
    fixed = {name.replace("_", "-") for name in FIXED}
    fixed |= {f"routing.{name.replace('_', '-')}" for name in FIXED_ROUTING}
    assert named == fixed
