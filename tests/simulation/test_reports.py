"""Statistics, reports and tables, on numbers that can be done by hand."""

import csv
import io
import json
import random

import pytest
from fleets import cache_aware, fleet, random_policy, text, turn
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from expediter.results.statistics import distribution, jains_index, mean
from expediter.simulation.experiment import compare
from expediter.simulation.report import Objective, Report, report
from expediter.simulation.tables import tables, to_csv


def test_percentiles_of_a_hundred_numbers_are_those_numbers() -> None:
    found = distribution([float(n) for n in range(101)])
    assert found is not None
    values = [e.value for e in (found.p50, found.p90, found.p95, found.p99, found.mean)]
    assert values == [50, 90, 95, 99, 50]
    assert found.count == 101
    assert found.p50.plus_minus is None  # ten values a part are too few
    assert distribution([]) is None
    assert mean([]) is None


def test_nine_of_ten_intervals_hold_the_true_mean() -> None:
    """95 % of them should; a count of 200 strays by 3 % at most, nearly always."""
    held = 0
    for seed in range(200):
        rng = random.Random(seed)
        found = mean([rng.expovariate(1.0) for _ in range(400)])
        assert found is not None
        assert found.plus_minus is not None
        held += abs(found.value - 1) <= found.plus_minus
    assert 0.90 < held / 200 < 0.99


def test_a_trend_widens_the_interval() -> None:
    """A run that gets slower has parts that differ, though neighbours do not."""
    rng = random.Random(1)
    steady = [rng.random() for _ in range(1000)]
    worsening = [value + number / 1000 for number, value in enumerate(steady)]
    widths = [found.plus_minus for values in (steady, worsening) if (found := mean(values))]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[1] > 4 * widths[0]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_jains_index_is_between_one_over_n_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jains_index(values) <= 1 + 1e-9


def test_jains_index_of_one_who_has_all_is_one_over_n() -> None:
    assert jains_index([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jains_index([3.0, 3.0]) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def two_policies() -> Report:
    """One worker does all: a short request at 0 s, a long one at 10 s, one too long at 20 s."""
    turns = [
        turn(0.0, text("a", 1000), 11, label="short"),
        turn(10.0, text("b", 8000), 11, label="long"),
        turn(20.0, text("c", 2_000_000), 11, label="long"),
    ]
    runs = compare(
        fleet(num_workers=1),
        turns,
        policies={"cache-aware": cache_aware, "random": random_policy},
    )
    return report(runs, objectives={"all": Objective(ttft=0.5), "short": Objective(tpot=0.0201)})


def test_a_report_has_every_class_and_all_of_them(two_policies: Report) -> None:
    run = two_policies.runs[0]
    assert [c.label for c in run.classes] == ["all", "long", "short"]
    everything, long, short = run.classes
    assert (everything.num_requests, long.num_requests, short.num_requests) == (3, 2, 1)
    assert (everything.num_failed, long.num_failed, short.num_failed) == (1, 1, 0)
    assert run.reasons == {"no-match": 3}


def test_stages_add_up_to_what_the_steps_took(two_policies: Report) -> None:
    short = two_policies.runs[0].classes[2]
    values = {
        name: getattr(short, name).mean.value
        for name in ("ttft", "tpot", "e2e", "normalised_latency", "queueing", "prefill", "decode")
    }
    assert values == pytest.approx(
        {
            "ttft": 0.1,
            "tpot": 0.0202,
            "e2e": 0.302,
            "normalised_latency": 0.302 / 11,
            "queueing": 0.0,
            "prefill": 0.1,
            "decode": 0.202,
        }
    )


def test_an_objective_is_missed_by_the_slow_and_by_the_lost(two_policies: Report) -> None:
    """TTFT of 8,000 tokens is 0.8 s; a decode step of one is 20.2 ms."""
    everything, long, short = two_policies.runs[0].classes
    assert long.attainment is not None
    assert short.attainment is not None
    assert (long.attainment.value, short.attainment.value) == (0, 0)
    assert everything.goodput == 0


def test_json_and_csv_hold_the_same_numbers(two_policies: Report) -> None:
    from_json = json.loads(two_policies.to_json())
    rows = list(csv.DictReader(io.StringIO(to_csv(two_policies))))
    assert [(row["policy"], row["label"]) for row in rows] == [
        (policy, label)
        for policy in ("cache-aware", "random")
        for label in ("all", "long", "short")
    ]
    first = from_json["runs"][0]["classes"][0]
    assert float(rows[0]["ttft.p99.value"]) == first["ttft"]["p99"]["value"]
    assert float(rows[0]["imbalance"]) == from_json["runs"][0]["imbalance"]


def test_tables_show_each_policy_and_class(two_policies: Report) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    for table in tables(two_policies):
        console.print(table)
    shown = console.export_text()
    for word in ("cache-aware", "random", "short", "long", "TTFT", "queueing", "imbalance"):
        assert word in shown
