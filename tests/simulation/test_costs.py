"""Cost models against the points their sources give."""

import csv
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.errors import ConfigError
from expediter.scheduling.output import PromptChunk, StepWork
from expediter.simulation.catalog import cost_names, named_cost
from expediter.simulation.costs import CostModel, LinearCost
from expediter.simulation.grid import grid_names, load_grid, packaged_grid
from expediter.simulation.published import (
    DISTSERVE,
    FITS,
    PREBLE_LLAMA,
    PrebleMistral,
    load_distserve,
)
from expediter.simulation.roofline import GPUS, MODELS, Roofline, kv_capacity_tokens

H100 = "llama3-70b_h100_sxm_sglang_tp8"


def prefill(n: int, p: int = 0) -> StepWork:
    return StepWork([PromptChunk(n, p)])


def decode(batch: int, context: int) -> StepWork:
    return StepWork((), batch, batch * context)


def mixed(n: int, batch: int, context: int) -> StepWork:
    return StepWork([PromptChunk(n, 0)], batch, batch * context)


def ms(cost: CostModel, work: StepWork) -> float:
    return cost.seconds(work) * 1e3


def grid_rows(name: str) -> list[dict[str, str]]:
    text = files("expediter").joinpath(f"data/aiconfigurator/{name}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def test_the_worked_examples_cost_a_tenth_of_a_ms_a_token_and_20_ms_a_step() -> None:
    cost = LinearCost()
    assert cost.seconds(prefill(3625)) == pytest.approx(0.3625)
    assert cost.seconds(prefill(1000, 5000)) == pytest.approx(0.1)
    assert cost.seconds(decode(100, 3000)) == pytest.approx(0.040)
    assert cost.seconds(mixed(1000, 100, 3000)) == pytest.approx(0.140)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (prefill(512), 28.9),
        (prefill(2048), 93.1),
        (prefill(8192), 345),
        (prefill(32768), 1573),
        (prefill(1024, 7168), 54.1),
        (decode(1, 2048), 9.3),
        (decode(32, 2048), 11.0),
        (decode(128, 2048), 16.6),
        (decode(256, 2048), 23.7),
    ],
)
def test_a_70b_model_on_eight_h100_takes_these_times(work: StepWork, expected: float) -> None:
    assert ms(packaged_grid(H100), work) == pytest.approx(expected, rel=0.005)
    assert ms(FITS["llama3-70b-8xh100-sglang"], work) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", grid_names())
def test_a_grid_gives_back_its_own_points(name: str) -> None:
    cost = packaged_grid(name)
    for row in grid_rows(name):
        batch, n, context = int(row["batch"]), int(row["new_tokens"]), int(row["context"])
        if row["kind"] == "mixed":
            continue
        work = prefill(n, context) if row["kind"] == "prefill" else decode(batch, context)
        assert ms(cost, work) == pytest.approx(float(row["latency_ms"]))


@pytest.mark.parametrize("name", grid_names())
def test_chunks_and_decodes_of_one_pass_share_its_fixed_cost(name: str) -> None:
    """The rule against the mixed passes that the grid's source predicts itself."""
    cost = packaged_grid(name)
    errors = [
        abs(ms(cost, mixed(n, batch, int(row["context"]))) / float(row["latency_ms"]) - 1)
        for row in grid_rows(name)
        if row["kind"] == "mixed" and (batch := int(row["batch"])) and (n := int(row["new_tokens"]))
    ]
    assert len(errors) == 70
    assert sum(errors) / len(errors) < 0.10
    assert max(errors) < 0.30


def test_below_its_smallest_chunk_a_grid_leads_to_a_decode_of_one() -> None:
    cost = packaged_grid(H100)
    assert ms(cost, prefill(64)) == pytest.approx(12.58)
    one = ms(cost, decode(1, 512))
    assert one < ms(cost, prefill(2, 512)) < ms(cost, prefill(32, 512)) < ms(cost, prefill(64, 512))


def test_beyond_its_contexts_a_grid_goes_on_as_attention_does() -> None:
    cost = packaged_grid(H100)
    steps = [ms(cost, decode(8, context)) for context in (65_536, 100_000, 134_464)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0])
    # 256 requests of 65,536 tokens would never fit; the grid's own last segment goes on.
    assert ms(cost, decode(256, 65_536)) > ms(cost, decode(128, 65_536))


MODELS_WITH_NAMES: dict[str, CostModel] = {
    **{name: named_cost(name) for name in cost_names()},
    "roofline": Roofline(model=MODELS["llama3-70b"], gpu=GPUS["h100"], num_gpus=8),
}


@pytest.mark.parametrize("name", MODELS_WITH_NAMES)
@given(
    n=st.integers(400, 16_000),
    p=st.integers(0, 30_000),
    batch=st.integers(1, 90),
    context=st.integers(1, 30_000),
)
def test_a_mixed_pass_costs_more_than_either_part_and_less_than_both(
    name: str, n: int, p: int, batch: int, context: int
) -> None:
    cost = MODELS_WITH_NAMES[name]
    alone = cost.seconds(prefill(n, p)), cost.seconds(decode(batch, context))
    both = cost.seconds(StepWork([PromptChunk(n, p)], batch, batch * context))
    assert 0.93 * max(alone) < both < 1.3 * sum(alone)
    assert cost.seconds(StepWork()) == 0


def test_distserve_gives_the_shapes_of_its_table() -> None:
    """13B on one A100: 18.1 + 52.2 + 1.9 ms for 512 tokens, and a stage's 1 and Ray's 2.05."""
    cost = DISTSERVE["opt-13b-tp1-distserve"]
    assert ms(cost, prefill(512)) == pytest.approx(18.103 + 52.178 + 1.867 + 1 + 2.0512, abs=0.01)
    assert ms(cost, decode(64, 512)) == pytest.approx(
        19.935 + (6.269e-4 + 1e-4) * 32768 + 0.03851 * 64 + 2, abs=0.01
    )
    large = ms(cost, decode(95, 512))
    assert large == pytest.approx(7.166 + (5.798e-4 + 1e-4) * 48640 + 0.15831 * 95 + 2, abs=0.01)


def test_chunks_of_a_prompt_add_up_to_its_square() -> None:
    cost = DISTSERVE["opt-13b-tp1-distserve"]
    start = ms(cost, prefill(1)) - 0.10191 - 7e-6 - 1e-4
    whole = ms(cost, prefill(2000)) - start
    parts = ms(cost, prefill(1500)) + ms(cost, prefill(500, 1500)) - 2 * start
    assert parts == pytest.approx(whole + 1500e-4, abs=0.01)  # Ray looks at the context twice


def test_distserves_own_file_gives_the_same_model(tmp_path: Path) -> None:
    fit = {
        "decoding_large_small_bs_threshold": 95,
        "prefill": [18.103, 0.10191, 7.122e-6],
        "decoding_smallbs": [19.935, 6.269e-4, 0.03851],
        "decoding_largebs": [7.166, 5.798e-4, 0.15831],
    }
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode({"facebook/opt-13b": {"1": fit}}))
    loaded = load_distserve(path, model="facebook/opt-13b", tensor_parallel=1)
    assert loaded == DISTSERVE["opt-13b-tp1-distserve"]
    with pytest.raises(ConfigError, match="TP 2"):
        load_distserve(path, model="facebook/opt-13b", tensor_parallel=2)


@pytest.mark.parametrize("engine", ["distserve", "vllm"])
def test_the_released_profiles_are_those_in_the_table(traces: Path, engine: str) -> None:
    path = traces / "distserve" / f"profiler-a100-80g.{engine}.json"
    for name, cost in DISTSERVE.items():
        _, size, tp, whose = name.split("-")
        if whose == engine:
            loaded = load_distserve(
                path, model=f"facebook/opt-{size}", tensor_parallel=int(tp.removeprefix("tp"))
            )
            for work in (prefill(2048), decode(32, 700), decode(128, 700)):
                assert ms(loaded, work) == pytest.approx(ms(cost, work), rel=0.001)


def test_preble_measured_these_times() -> None:
    """100 tokens take 22 ms and 0.32 of attention; 2,000 take 0.10843 each and 0.53."""
    cost = PrebleMistral()
    assert ms(cost, prefill(100)) == pytest.approx((22 + 0.32) / 0.9)
    square = 1.13e-3 * 2000 + 1.75e-3 * 2000 + 2.19e-6 * 2000**2
    whole = 0.10843 * 2000 + 4.21 + 1.86e-4 * 2000 + 0.159 + square
    assert ms(cost, prefill(2000)) == pytest.approx(whole / 0.9)
    llama = PREBLE_LLAMA["llama3-70b-2xa100-preble"]
    expected = 28.93 + 0.1822 * 500 + 4e-3 * 2000 + 2.55e-6 * 500 * 2000
    assert ms(llama, prefill(500, 1500)) == pytest.approx(expected)


def test_the_roofline_reads_weights_for_decodes_and_computes_for_prompts() -> None:
    cost = Roofline(model=MODELS["llama3-70b"], gpu=GPUS["h100"], num_gpus=8)
    weights = 141.2e9 / (8 * 3.35e12 * 0.57)
    assert cost.seconds(decode(1, 1)) == pytest.approx(weights, rel=0.001)
    grid = packaged_grid(H100)
    for work in (prefill(2048), prefill(8192), decode(1, 2048), decode(64, 2048)):
        assert cost.seconds(work) == pytest.approx(grid.seconds(work), rel=0.15)


def test_eight_h100_hold_1_3_million_tokens_of_a_70b_models_kv() -> None:
    """(8 x 80 GB x 0.9 - 141 GB) / 320 KiB."""
    capacity = kv_capacity_tokens(MODELS["llama3-70b"], GPUS["h100"], num_gpus=8)
    assert capacity == pytest.approx(1_327_000, abs=1000)


def test_a_file_that_is_no_grid_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("kind,batch\nprefill,1\n")
    with pytest.raises(ConfigError, match="not a grid"):
        load_grid(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_grid(tmp_path / "none.csv")
    for look_up in (packaged_grid, named_cost):
        with pytest.raises(ConfigError, match="there are"):
            look_up("none")
