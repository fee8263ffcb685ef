"""A grid of experiments: every cell once, whoever computes it, and none twice."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from expediter.assemble import build_policy
from expediter.errors import ConfigError
from expediter.simulation import ExperimentConfig, Sweep, in_processes, sweep_page
from expediter.simulation.runners import Runner, in_turn
from expediter.simulation.sweep_page import METRICS, axes_of

BASE = ExperimentConfig(
    workload="demo", requests=60, workers=2, block_size=256, policy=("round-robin", "cache-aware")
)
VARY: dict[str, Sequence[Any]] = {"rate": [10.0, 30.0], "routing.slack-tokens": [0, 4096]}


def a_sweep(base: ExperimentConfig = BASE, **vary: Sequence[Any]) -> Sweep:
    return Sweep(base, vary or VARY, build_policy=build_policy)


class Counting:
    """Runs cells here and counts them; stops after `at_most`."""

    def __init__(self, *, at_most: int = 1000) -> None:
        self.num_run = 0
        self._at_most = at_most

    def __call__(
        self, work: Callable[[Any], Any], items: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        for place, found in in_turn(work, items):
            if self.num_run == self._at_most:
                raise KeyboardInterrupt
            self.num_run += 1
            yield place, found


def test_every_combination_is_a_cell_and_policies_are_an_axis() -> None:
    cells = a_sweep().cells
    assert len(cells) == 2 * 2 * 2
    assert cells[0] == {"rate": 10.0, "routing.slack-tokens": 0, "policy": "round-robin"}
    assert cells[-1] == {"rate": 30.0, "routing.slack-tokens": 4096, "policy": "cache-aware"}


def test_a_cell_is_what_the_experiment_gives_alone() -> None:
    (cell,) = a_sweep(policy=["cache-aware"], seed=[3]).run()
    alone = ExperimentConfig(
        workload="demo", requests=60, workers=2, block_size=256, policy=("cache-aware",), seed=3
    )
    (again,) = Sweep(alone, {"workers": [2]}, build_policy=build_policy).run()
    assert cell.run == again.run


def test_processes_give_the_bytes_that_one_gives(tmp_path: Path) -> None:
    a_sweep().run(file=tmp_path / "one")
    a_sweep().run(file=tmp_path / "two", runner=in_processes(2))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, file = tmp_path / "whole", tmp_path / "rows"
    a_sweep().run(file=whole)
    with pytest.raises(KeyboardInterrupt):
        a_sweep().run(file=file, runner=Counting(at_most=3))
    with file.open("ab") as torn:
        torn.write(b'{"cell": {"rate": 1')  # it was killed while it wrote
    rest = Counting()
    a_sweep().run(file=file, runner=rest)
    assert rest.num_run == 5
    assert file.read_bytes() == whole.read_bytes()
    nothing = Counting()
    a_sweep().run(file=file, runner=nothing)
    assert nothing.num_run == 0


def test_more_values_of_an_axis_keep_the_cells_that_are_there(tmp_path: Path) -> None:
    file, runner = tmp_path / "rows", Counting()
    a_sweep(seed=[1, 2]).run(file=file)
    found = a_sweep(seed=[2, 3]).run(file=file, runner=runner)
    assert runner.num_run == 2
    assert [each.cell["seed"] for each in found] == [2, 2, 3, 3]
    rows = [json.loads(line) for line in file.read_bytes().splitlines()[1:]]
    assert sorted({row["cell"]["seed"] for row in rows}) == [1, 2, 3]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (ExperimentConfig(requests=61), "workload is demo there and None here"),
        (
            ExperimentConfig(workload="demo", requests=60, workers=3, block_size=256),
            "workers is 2 there and 3 here; remove it or name another file",
        ),
    ],
)
def test_a_file_of_another_experiment_is_refused(
    base: ExperimentConfig, message: str, tmp_path: Path
) -> None:
    a_sweep().run(file=tmp_path / "rows")
    with pytest.raises(ConfigError, match=message):
        a_sweep(base).run(file=tmp_path / "rows")


def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("rate,workers\n1,2\n")
    with pytest.raises(ConfigError, match="not a sweep's file"):
        a_sweep().run(file=tmp_path / "rows")


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"rates": [1.0]}, "rates: there is no such setting; beside it there are workload"),
        ({"routing.slack": [1]}, "routing.slack: there is no such setting"),
        ({"rate.x": [1]}, "rate has no keys"),
        ({"rate": [-1.0]}, "rate=-1.0, policy=round-robin: Expected `float` > 0"),
        ({"policy": ["best"]}, "policy=best: Invalid enum value 'best'"),
        ({"rate": []}, "rate has no values"),
    ],
)
def test_an_axis_that_is_no_setting_is_named(vary: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        a_sweep(**vary)


def test_a_page_has_a_map_for_two_axes_and_lines_for_one() -> None:
    two = a_sweep().run()
    assert list(axes_of(two)) == ["rate", "routing.slack-tokens"]
    page = sweep_page(two, title="Two axes")
    assert page.count("<svg") == len(METRICS)
    assert "routing.slack-tokens" in page
    one = [result for result in two if result.cell["rate"] == 10.0]
    assert list(axes_of(one)) == ["routing.slack-tokens"]
    assert sweep_page(one, title="One").count("<svg") == len(METRICS)
    none = one[:2]
    assert sweep_page(none, title="None").count("<svg") == len(METRICS)


def test_the_command_runs_a_files_grid_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(
        'workload = "demo"\nrequests = 60\nworkers = 2\nblock-size = 256\n'
        'policy = ["round-robin"]\n'
        "[vary]\nrate = [10.0, 30.0]\n[vary.routing]\nslack-tokens = [0]\n"
    )
    names = "--out rows.jsonl --csv rows.csv --parquet rows.parquet --html page.html --jobs 2"
    first = sweep(tmp_path, "experiment.toml", *names.split())
    assert (first.returncode, first.stderr) == (0, "")
    kept = (tmp_path / "rows.jsonl").read_bytes()
    again = sweep(tmp_path, "experiment.toml", "--vary", "rate=10,30", *names.split())
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert (tmp_path / "rows.jsonl").read_bytes() == kept
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[0].startswith("cell.rate,cell.routing.slack-tokens,cell.policy,policy,label,")
    assert len(lines) == 3
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.column("cell.rate").to_pylist() == [10.0, 30.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.toml",), "a.toml: nothing varies; say --vary key=value,value or [vary]"),
        (("a.toml", "--vary", "rate"), "--vary rate: write it as key=value,value"),
        (("a.toml", "--vary", "rate=1", "--ray", "--jobs", "2"), "there can be only one of them"),
        (("none.toml",), "none.toml: No such file or directory"),
        (("a.toml", "--vary", "rate=1", "--out", "no/rows"), "no/rows: there is no folder no"),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_status_2(
    arguments: Sequence[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text('workload = "demo"\n')
    run = sweep(tmp_path, *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "expediter", "sweep", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )


def test_ray_gives_equal_results(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from expediter.simulation import on_ray

    a_sweep().run(file=tmp_path / "one")
    runner: Runner = on_ray
    a_sweep().run(file=tmp_path / "two", runner=runner)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
