"""Every experiment runs in its small form, and says what the large one is about."""

import importlib

import pytest

from experiments import running
from experiments.__main__ import NAMES
from experiments.running import Table


def small(name: str) -> dict[str, Table]:
    tables = importlib.import_module(f"experiments.{name}").run(quick=True)
    for table in tables:
        assert table.rows, table.title
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    return {table.title: table for table in tables}


def column(table: Table, name: str, **wanted: object) -> list[float]:
    """Values of a column in the rows where others have certain values."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    chosen = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return [float(row[name]) for row in chosen]


def test_every_worked_number_is_computed_as_it_is_written() -> None:
    (table,) = small("worked_numbers").values()
    ours, theirs = column(table, "ours"), column(table, "theirs")
    assert ours == pytest.approx(theirs, rel=0.04)  # the ring's share is a matter of chance


def test_the_demo_comes_out_as_published() -> None:
    tables = list(small("demo_table").values())
    published, blocks, served, ring = tables
    hits = column(published, "hit rate %", setting="as published", policy="cache-aware")
    assert hits == pytest.approx([94], abs=1)
    assert column(blocks, "hit rate %") == pytest.approx([93], abs=1)
    found = {policy: column(served, "hit rate %", policy=policy)[0] for policy in ("random", "slo")}
    assert found["slo"] > found["random"] + 10
    assert column(ring, "keys moved %") == pytest.approx([100 / 9], abs=4)


def test_longest_match_alone_makes_the_hot_class_wait() -> None:
    (table,) = small("hot_prefix").values()
    waits = {
        arm: column(table, "p99", arm=arm, **{"class": "A"})[0]
        for arm in ("longest match alone", "slo")
    }
    assert waits["longest match alone"] > 3 * waits["slo"]


def test_recomputing_takes_longest_and_two_pools_have_the_evenest_tpot_unless_links_are_slow() -> (
    None
):
    table, links = small("four_policies").values()
    waits = {arm: column(table, "TTFT p50 ms", arm=arm)[0] for arm in ("round robin", "cost-aware")}
    assert waits["cost-aware"] < waits["round robin"]
    tails = {arm: column(table, "TPOT p99 ms", arm=arm)[0] for arm in ("cost-aware", ARM)}
    assert tails[ARM] < tails["cost-aware"]
    for way in ("at once", "one after the other"):
        fast, slow = column(links, "exposed p50 ms", **{"hand-over": way})
        assert fast < 10 < 1000 < slow
    fast = [column(links, "exposed p50 ms", **{"hand-over": way})[0] for way in ("at once", LATER)]
    assert fast[0] < fast[1]  # what is moved during prefill is not waited for


ARM, LATER = "disaggregated", "one after the other"


def test_prefill_alone_does_more_than_both_together_and_decode_most() -> None:
    one_gpu, table_2 = small("distserve").values()
    rates = [
        column(one_gpu, "requests/s a GPU", part=part, coefficients="vLLM")[0] for part in PARTS
    ]
    assert rates == sorted(rates)
    in_time = column(table_2, "in time %, 0.4 s / 0.1 s")
    assert in_time[0] > in_time[1]


def test_two_pools_hold_more_than_one() -> None:
    gains, attained = small("two_pools").values()
    assert column(gains, "two pools/s a GPU")[0] > column(gains, "one pool")[0]
    assert column(attained, "TPOT in time %") == [100.0, 100.0]


PARTS = ("colocated", "prefill only", "decode only")


def test_e2_beats_round_robin_on_toolbench() -> None:
    (table,) = small("preble").values()
    assert column(table, "times E2's", policy="round-robin")[0] > 1


def test_a_workload_by_itself_needs_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPEDITER_TRACES", raising=False)
    (table,) = small("winners").values()
    hits = [column(table, "hit rate %", policy=policy)[0] for policy in ("slo", "round-robin")]
    assert hits[0] > hits[1]
    assert small("mooncake") == {}


@pytest.mark.usefixtures("traces")
def test_on_the_traces_cache_aware_prefill_beats_random() -> None:
    _, schedulers = small("mooncake").values()
    means = {
        name: column(schedulers, "mean TTFT s", scheduler=name)[0]
        for name in ("random", "slo", "local cache-aware", "global cache-aware")
    }
    assert means["slo"] < means["random"]
    assert means["global cache-aware"] <= means["local cache-aware"]
    assert column(schedulers, "GB moved", scheduler="global cache-aware")[0] > 0
    assert len(small("winners")) == 3


def test_the_page_has_a_place_for_every_experiment() -> None:
    page = running.PAGE.read_text("utf-8")
    for name in NAMES:
        begin, end = page.index(f"<!-- {name} -->"), page.index(f"<!-- end of {name} -->")
        assert page[begin:end].count("| --- |") >= 1, name
