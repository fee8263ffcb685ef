"""Cost models that were measured, from file to step time."""

import csv
from importlib.resources import files
from pathlib import Path

import pytest

from expediter.errors import ConfigError
from expediter.scheduling.output import PromptChunk, StepWork
from expediter.simulation.costs import QuadraticFit
from expediter.simulation.grid import packaged_grid
from expediter.simulation.measured import (
    MeasuredFit,
    MeasuredGrid,
    Point,
    load_cost,
    save_cost,
)

GRID = "llama3-8b_h100_sxm_vllm_tp1"
WORKS = [
    StepWork([PromptChunk(700, 0)]),
    StepWork([PromptChunk(512, 3000)], 12, 12 * 900),
    StepWork((), 40, 40 * 1500),
]


def grid_text() -> str:
    return files("expediter").joinpath(f"data/aiconfigurator/{GRID}.csv").read_text("utf-8")


def test_a_fit_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    fit = MeasuredFit(prefill=(8.0, 0.05, 3e-6), decode=(11.5, 0.04, 8e-5), source="a test")
    save_cost(path, fit)
    assert load_cost(path) == QuadraticFit(prefill=fit.prefill, decode=fit.decode)


def test_measured_points_give_the_same_times_as_the_same_points_in_a_packaged_grid(
    tmp_path: Path,
) -> None:
    rows = [r for r in csv.DictReader(grid_text().splitlines()) if r["kind"] != "mixed"]
    points = [
        Point(
            kind="prefill" if row["kind"] == "prefill" else "decode",
            batch=int(row["batch"]),
            new_tokens=int(row["new_tokens"]),
            context=int(row["context"]),
            latency_ms=float(row["latency_ms"]),
        )
        for row in rows
    ]
    save_cost(tmp_path / "grid.json", MeasuredGrid(points=points))
    (tmp_path / "grid.csv").write_text(grid_text())
    for name in ("grid.json", "grid.csv"):
        cost = load_cost(tmp_path / name)
        for work in WORKS:
            assert cost.seconds(work) == packaged_grid(GRID).seconds(work)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "form"),
        ('{"form": "spline"}', "spline"),
        ('{"form": "fit", "prefill": [1, 2], "decode": [1, 2, 3]}', "prefill"),
        ('{"form": "fit", "prefill": [1, 2, 3], "decode": [1, 2, 3], "decod": 1}', "decod"),
        ('{"form": "grid", "points": []}', "fewer than two"),
        ("prefill: 3", "not a cost model"),
    ],
)
def test_a_file_that_is_no_cost_model_is_refused_with_the_reason(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_cost(path)


def test_a_grid_without_a_batch_of_one_says_so(tmp_path: Path) -> None:
    points = [
        Point(kind="prefill", batch=1, new_tokens=n, context=0, latency_ms=n) for n in (64, 128)
    ] + [Point(kind="decode", batch=b, new_tokens=1, context=0, latency_ms=b) for b in (2, 4)]
    save_cost(tmp_path / "grid.json", MeasuredGrid(points=points))
    with pytest.raises(ConfigError, match="batch 1"):
        load_cost(tmp_path / "grid.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        load_cost(tmp_path / "none.json")
