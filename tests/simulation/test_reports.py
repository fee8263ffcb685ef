"""Statistics, reports and tables, on numbers that can be done by hand."""

import csv
import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import cache_aware, fleet, random_policy, text, turn
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from expediter.assemble import build_policy
from expediter.results.rows import write_parquet
from expediter.results.statistics import distribution, jains_index, mean
from expediter.simulation import Crash, ExperimentConfig, Study, html_report
from expediter.simulation.curves import open_requests
from expediter.simulation.experiment import compare
from expediter.simulation.report import Objective, Report, report
from expediter.simulation.tables import tables, to_csv, to_rows


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


def test_what_was_evicted_and_came_back_was_computed_again() -> None:
    """The cache holds 20 blocks of 100: b pushes a out, and a's 19 full blocks come again."""
    turns = [turn(at, text(name, 1950), 2) for at, name in ((0, "a"), (10, "b"), (20, "a"))]
    (run,) = compare(
        fleet(num_workers=1, kv_tokens=2000), turns, policies={"cache-aware": cache_aware}
    )
    found = report([run]).runs[0]
    assert found.workers[0].num_recomputed_tokens == found.waste.recomputed_tokens == 1900
    assert found.waste.recomputation_seconds == pytest.approx(0.19)  # 0.1 ms a token
    assert found.waste.lost_prompt_tokens == 0


def test_enough_memory_computes_nothing_again() -> None:
    turns = [turn(at, text(name, 1950), 2) for at, name in ((0, "a"), (10, "b"), (20, "a"))]
    (run,) = compare(fleet(num_workers=1), turns, policies={"cache-aware": cache_aware})
    assert report([run]).runs[0].waste.recomputed_tokens == 0


def test_work_for_an_answer_that_was_lost_is_lost() -> None:
    """The worker dies 1 s into an answer: 1,000 prompt tokens and those said so far."""
    model = fleet(num_workers=1, faults=[Crash(worker=0, at=1.0, seconds=5.0)])
    turns = [turn(0.0, text("a", 1000), 200), turn(20.0, text("b", 500), 2)]
    (run,) = compare(model, turns, policies={"cache-aware": cache_aware})
    found = report([run]).runs[0]
    assert found.waste.lost_prompt_tokens == 1000
    assert found.waste.lost_output_tokens == run.answers[0].num_output_tokens > 0
    assert found.classes[0].errors == {"worker_lost": 1}


def test_slowdown_is_one_for_a_request_alone() -> None:
    """And two requests of one instant share a worker: both prompts are computed before."""
    alone = [turn(0.0, text("a", 1000), 11)]
    both = [*alone, turn(0.0, text("b", 1000), 11)]
    runs = [
        compare(fleet(num_workers=1), turns, policies={"p": cache_aware})[0]
        for turns in (alone, both)
    ]
    first, second = (run.max_slowdown for run in report(runs).runs)
    assert first == pytest.approx(1.0)
    # 0.1 s of prefill and ten steps of 20.2 ms, against 0.2 s and ten of 20.4
    assert second == pytest.approx((0.2 + 10 * 0.0204) / (0.1 + 10 * 0.0202))


def test_goodput_is_shared_by_all_gpus() -> None:
    model = replace(fleet(num_workers=2), gpus_per_worker=4)
    turns = [turn(float(at), text(f"{at}", 100), 2) for at in range(10)]
    (run,) = compare(model, turns, policies={"p": cache_aware})
    found = report([run]).runs[0]
    assert found.num_gpus == 8
    assert found.classes[0].goodput_per_gpu == pytest.approx(found.classes[0].goodput / 8)


def test_a_page_holds_every_table_and_plot_and_needs_nothing_else() -> None:
    config = ExperimentConfig(workload="hot-prefix", requests=200, workers=2, block_size=128)
    study = Study(config, build_policy=build_policy)
    runs = study.runs()
    page = html_report(study.report(runs), runs, config)
    assert page.count("<svg") == 4  # latencies, classes, stages, load
    assert "http" not in re.sub(
        r'xmlns(:\w+)?="[^"]*"|<!DOCTYPE[^>]*>|<metadata>.*?</metadata>', "", page, flags=re.DOTALL
    )
    for word in ("cache-aware", "round-robin", "hot-prefix", "imbalance", "currentColor"):
        assert word in page
    assert page == html_report(study.report(runs), runs, config)


def test_load_over_time_is_how_many_requests_are_open() -> None:
    """Two requests, the second after the first: what is open adds up to what they took."""
    turns = [turn(0.0, text("a", 10_000), 51), turn(4.0, text("b", 10_000), 51)]
    (run,) = compare(fleet(num_workers=1), turns, policies={"p": cache_aware})
    (load,) = open_requests(run)
    moment = run.seconds / len(load)
    for answer in run.answers:
        assert answer.finished_at is not None
    total = sum((a.finished_at or 0) - a.arrived_at for a in run.answers)
    assert sum(load) * moment == pytest.approx(total)
    assert max(load) == pytest.approx(1.0)
    assert min(load) == 0.0


def test_parquet_has_the_rows_of_the_csv(two_policies: Report, tmp_path: Path) -> None:
    from pyarrow import parquet

    write_parquet(tmp_path / "rows.parquet", to_rows(two_policies))
    table = parquet.read_table(tmp_path / "rows.parquet")
    rows = list(csv.DictReader(io.StringIO(to_csv(two_policies))))
    assert table.column_names == list(rows[0])
    assert table.column("ttft.p50.value").to_pylist() == [
        float(row["ttft.p50.value"]) for row in rows
    ]
