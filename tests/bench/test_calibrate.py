"""Coefficients come back from a worker that has them, on a clock that jumps and on a real one."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from endpoints import hash_worker, simulated
from hypothesis import given
from hypothesis import strategies as st

from expediter.bench.calibration import Calibration
from expediter.bench.calibration_plan import CalibrationPlan
from expediter.bench.endpoint import Model
from expediter.bench.fit import DecodePoint, Fit, PrefillPoint, fit, line
from expediter.bench.load import LoadGenerator
from expediter.bench.recorded import fit_rows
from expediter.bench.report import bench_report
from expediter.bench.settings import BenchConfig
from expediter.bench.texts import Writer
from expediter.errors import EndpointError
from expediter.results.statistics import Distribution
from expediter.simulation.costs import QuadraticFit
from expediter.simulation.loop import run_virtual
from expediter.simulation.measured import load_cost
from expediter.workload.prose import Prose
from expediter.workload.transcript import EMPTY
from expediter.workload.turn import Turn

COST = QuadraticFit(prefill=(8.04, 0.05468, 2.957e-6), decode=(11.55, 0.037, 8.024e-5))
positive = st.floats(1e-4, 10.0)


@given(a=positive, b=positive, c=positive)
def test_exact_points_give_exact_coefficients(a: float, b: float, c: float) -> None:
    points = [
        DecodePoint(batch=n, context_tokens=s * n, seconds=(a + b * n + c * s * n) / 1e3)
        for n in (1, 2, 8, 32)
        for s in (10, 100, 400)
    ]
    found = line(points, what="decode")
    assert found.coefficients == pytest.approx((a, b, c), rel=1e-4, abs=1e-6)
    assert found.error < 1e-6


def test_no_coefficient_is_negative() -> None:
    """Prefills that get relatively shorter: a negative square would fit best, and is no cost."""
    points = [
        PrefillPoint(new_tokens=n, cached_tokens=0, seconds=(5 + n**0.8) / 1e3)
        for n in (100, 1000, 3000, 8000)
    ]
    assert min(line(points, what="prefill").coefficients) >= 0


def test_too_few_points_are_an_error() -> None:
    points = [PrefillPoint(new_tokens=1, cached_tokens=0, seconds=1.0)] * 2
    with pytest.raises(EndpointError, match="2 points of prefill can be used, 3 are needed"):
        line(points, what="prefill")


def test_a_workers_coefficients_come_back() -> None:
    """The worker's steps cost `COST`; what is measured from outside gives it again."""
    plan = CalibrationPlan(
        url="http://127.0.0.1:1",
        lengths=(256, 1024, 4096),
        cached=(0, 2048),
        batches=(1, 4, 16),
        contexts=(256, 2048),
        output_tokens=24,
        repeats=1,
    )

    async def main() -> Fit:
        async with simulated(COST) as endpoint:
            calibration = Calibration(
                endpoint,
                model=Model("m"),
                prose=Prose(lambda text: len(text.split())),
                plan=plan,
                nonce="1",
            )
            return fit(*await calibration.run())

    found = run_virtual(main())
    assert len(found.prefill_points) == len(found.decode_points) == 6
    assert found.prefill.coefficients == pytest.approx(COST.prefill, rel=0.02)
    assert found.decode.coefficients == pytest.approx(COST.decode, rel=0.02)
    assert found.error < 0.01


def test_shapes_beyond_the_models_context_are_left_out() -> None:
    calibration = Calibration(
        None,  # type: ignore[arg-type]
        model=Model("m", max_model_len=3000),
        prose=Prose(lambda text: len(text.split())),
        plan=CalibrationPlan(url="http://127.0.0.1:1"),
        nonce="1",
    )
    prefills, decodes = calibration.shapes
    assert max(new + cached for new, cached in prefills) == 2048
    assert {context for _, context in decodes} == {256, 2048}


def test_a_benchmark_gives_the_coefficients_too() -> None:
    """200 unlike prompts at a moderate rate. What overlaps is reckoned, so less exactly."""
    rng = random.Random(1)
    turns, now = [], 0.0
    for number in range(200):
        now += rng.expovariate(2.0)
        prompt = EMPTY.then(f"p{number}", rng.randint(200, 6000))
        turns.append(
            Turn(arrival_time=now, transcript=prompt.then(f"a{number}", rng.randint(10, 150)))
        )

    async def main() -> Fit:
        async with simulated(COST) as endpoint:
            config = BenchConfig(url="http://127.0.0.1:1", api="completions")
            writer = Writer(config, model="m", words_per_token=1.0)
            load = await LoadGenerator(endpoint, writer).run(turns)
        report = bench_report(load, model="m", objectives={})
        assert isinstance(report.lag, Distribution)
        return fit_rows(report.requests)

    found = run_virtual(main())
    assert len(found.prefill_points) > 10
    assert found.prefill.coefficients == pytest.approx(COST.prefill, rel=0.02)
    assert found.decode.coefficients[0] == pytest.approx(COST.decode[0], rel=0.1)
    assert found.decode.coefficients[2] == pytest.approx(COST.decode[2], rel=0.3)
    assert found.decode.error < 0.05


def calibrate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "expediter", "calibrate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_measures_a_worker_and_the_simulator_takes_the_file(tmp_path: Path) -> None:
    """Its steps take 5 ms and a little for each token; how little is the machine's affair."""
    out = tmp_path / "cost.json"
    shapes = "--lengths 64 --lengths 512 --cached 0 --cached 128 --batches 1 --batches 3"
    more = "--contexts 64 --contexts 256 --output-tokens 12 --repeats 1"
    with hash_worker() as url:
        run = calibrate("--url", url, "--out", str(out), *shapes.split(), *more.split())
    assert run.returncode == 0, run.stderr
    assert "prefill" in run.stdout
    assert load_cost(out)
    written = json.loads(out.read_bytes())
    assert written["form"] == "fit"
    assert written["decode"][0] > 0
    simulated_run = subprocess.run(
        [sys.executable, "-m", "expediter", "simulate", "--cost", str(out), "--requests", "20"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert simulated_run.returncode == 0, simulated_run.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "Object missing required field `url`"),
        (("--url", "http://127.0.0.1:9", "--out", "no/a"), 2, "no/a: there is no folder no"),
        (("--from-bench", "none.json"), 2, "none.json: No such file or directory"),
        (("--from-bench", "a", "--url", "http://x"), 2, "nothing is measured, so it goes alone"),
        (("--url", "http://x", "--lengths", "5"), 2, "lengths: Expected `array` of length >= 2"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line(
    arguments: Sequence[str], status: int, message: str
) -> None:
    run = calibrate(*arguments)
    assert (run.returncode, run.stdout) == (status, "")
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_file_that_is_no_benchmark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"runs": []}')
    run = calibrate("--from-bench", str(tmp_path / "a.json"), "--out", str(tmp_path / "b"))
    assert run.returncode == 2
    assert "not a file of expediter bench" in run.stderr
