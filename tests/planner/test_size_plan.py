"""The worked numbers of a 70B model on 8 H100s, each from the command line that gives it."""

import json
import math
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from expediter.cli.app import app
from expediter.errors import ConfigError
from expediter.planner import sizing
from expediter.planner.links import LINKS, named_link
from expediter.planner.settings import SizeConfig
from expediter.planner.size import size_plan
from expediter.simulation.costs import LinearCost
from expediter.simulation.models import model_names, named_model
from expediter.simulation.roofline import GPUS

GIB = 1 << 30
CHAT = "--rate 20 --shared 2000 --history 3000 --new 1000 --cost linear"
POOLS = "--rate 20 --new 3000 --output 300 --tpot 0.04 --cost linear"

WORKED = [
    ("", {"kv_bytes_per_token": 327_680}),
    ("--kv-dtype fp8", {"kv_bytes_per_token": 163_840}),
    ("--shared 2000 --history 3000", {"kv_bytes_shared": 655e6, "kv_bytes_history": 983e6}),
    (
        CHAT,
        {
            "random_cached_tokens": 2375,
            "cache_aware_cached_tokens": 5000,
            "random_prefill_tokens_per_second": 72_500,
            "cache_aware_prefill_tokens_per_second": 20_000,
            "random_prefill_seconds": 0.3625,
            "cache_aware_prefill_seconds": 0.1,
        },
    ),
    (
        "--new 8000 --link nvlink4 --link nic400",
        {
            "transfer_bytes": 2.62e9,
            "transfer_bytes_per_link": 328e6,
            "transfer_seconds_nvlink4": 0.73e-3,
            "transfer_seconds_nic400": 6.55e-3,
        },
    ),
    ("--new 8000 --kv-dtype fp8 --link nic400", {"transfer_bytes": 1.31e9}),
    ("--new 8000 --link nic400 --links 1", {"transfer_seconds_nic400": 52.4e-3}),
    (
        "--new 100000 --link nic400",
        {"transfer_bytes": 32.8e9, "transfer_seconds_nic400": 82e-3},
    ),
    ("--new 16000 --link nic400", {"transfer_bytes": 5.24e9, "transfer_seconds_nic400": 13.1e-3}),
    (
        POOLS,
        {
            "prefill_replicas": 6,
            "decode_concurrency": 240,
            "max_batch": 100,
            "decode_replicas": 2.4,
        },
    ),
    (f"{POOLS} --hit-rate 0.83", {"prefill_replicas_with_hits": 1.02}),
    ("--model llama2-7b --gpu a100 --gpus 1 --new 4096", {"kv_bytes_prompt": 2 * GIB}),
    # The paper's 1.13 GB and 90 Gb/s are in units of 2^30 bytes.
    (
        "--model opt-66b --gpu a100 --new 512 --rate 10 --link nic100",
        {"kv_bytes_prompt": 1.125 * GIB, "transfer_bytes_per_second": 11.25 * GIB},
    ),
    (
        "--pools 2:1 --pool-rates 5.6:10 --colocated-rate 1.6",
        {"goodput": 10, "goodput_per_gpu": 3.33},
    ),
]


def figures(arguments: str, folder: Path) -> dict[str, float]:
    out = folder / "figures.json"
    result = CliRunner().invoke(app, ["plan", "size", *shlex.split(arguments), "--json", str(out)])
    assert result.exit_code == 0, result.output + str(result.exception)
    return dict(json.loads(out.read_bytes()))


@pytest.mark.parametrize(("arguments", "expected"), WORKED, ids=[line for line, _ in WORKED])
def test_one_command_line_gives_the_worked_number(
    arguments: str, expected: dict[str, float], tmp_path: Path
) -> None:
    found = figures(arguments, tmp_path)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=5e-3)


def test_every_command_line_on_the_page_gives_what_the_page_says(tmp_path: Path) -> None:
    """Lines `expediter plan size ...` with the figure they are there for in a comment."""
    page = Path(__file__).parents[2] / "docs" / "planning.md"
    lines = [
        line for line in page.read_text("utf-8").splitlines() if line.startswith("expediter plan s")
    ]
    sized = [line for line in lines if line.startswith("expediter plan size")]
    assert len(sized) >= len(WORKED) - 1
    for line in sized:
        figures(line.removeprefix("expediter plan size").partition("#")[0], tmp_path)


def test_heads_that_are_not_shared_move_eight_times_as_much(tmp_path: Path) -> None:
    shape = {
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "hidden_size": 8192,
        "vocab_size": 32_000,
        "intermediate_size": 28_672,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    assert named_model(str(tmp_path)).spec.kv_bytes_per_token == 8 * 327_680


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        # Published parameter counts of Llama 3 8B and 70B, Mixtral 8x7B, DeepSeek-V3 and OPT-13B.
        ((32, 32, 4096, 128_256, 14_336, {"num_key_value_heads": 8}), 8.03),
        ((80, 64, 8192, 128_256, 28_672, {"num_key_value_heads": 8}), 70.6),
        ((32, 32, 4096, 32_000, 14_336, {"num_key_value_heads": 8, "num_local_experts": 8}), 46.7),
        ((40, 40, 5120, 50_272, None, {"ffn_dim": 20_480, "tie_word_embeddings": True}), 12.85),
    ],
)
def test_parameters_are_counted_from_the_shapes(
    config: tuple[int, int, int, int, int | None, dict[str, object]],
    billions: float,
    tmp_path: Path,
) -> None:
    layers, heads, hidden, vocabulary, width, more = config
    shape = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "intermediate_size": width,
        **more,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shape))
    assert named_model(str(path)).num_params == pytest.approx(billions * 1e9, rel=0.01)


def test_latent_attention_keeps_one_vector_a_layer() -> None:
    """DeepSeek-V3: 61 x (512 + 64) x 2 B, 70 KB where Llama 3.1 405B has 516 KB."""
    assert named_model("deepseek-v3").spec.kv_bytes_per_token == 61 * 576 * 2
    assert named_model("llama3.1-405b").spec.kv_bytes_per_token == 516_096


def test_a_cheap_tier_pays_only_while_it_is_faster_than_computing() -> None:
    slow = sizing.reuse(
        LinearCost(), named_link("1GB/s"), num_tokens=1000, num_bytes=327_680_000, num_links=1
    )
    fast = sizing.reuse(
        LinearCost(), named_link("pcie5"), num_tokens=1000, num_bytes=327_680_000, num_links=1
    )
    assert (slow.pays, fast.pays) == (False, True)
    assert slow.break_even_bytes_per_second == pytest.approx(3.28e9, rel=1e-3)


def test_a_robot_sends_its_prompt_and_not_its_cache(tmp_path: Path) -> None:
    found = figures("--new 1000 --uplink wifi --prompt-bytes 100000", tmp_path)
    assert found["ship_kv_seconds"] > 20 * found["send_prompt_seconds"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gpu": "h1000"}, "no GPU is called 'h1000'; there are a100"),
        ({"model": "gpt-5"}, "no model is called 'gpt-5', and there is no such file"),
        ({"cost": "free"}, "no cost model is called 'free'"),
        ({"link": ("string",)}, "no link is called 'string'; there are nvlink4"),
        ({"gpus": 1}, "llama3-70b does not fit: its weights take 141 GB, 1 x h100 offer 72.0 GB"),
        ({"rate": 1.0, "tpot": 0.01}, "below the floor of one token, 20.2 ms for a request that"),
        ({"rate": 1.0, "new": 8000, "ttft": 0.5}, "below the floor of one request alone, 800 ms"),
        ({"rate": 1.0, "tpot": 0.05, "cache_tokens": 500}, "holds 500 tokens, less than one requ"),
        ({"offload": "pcie5"}, "give shared or history"),
        ({"uplink": "wifi"}, "give prompt-bytes"),
    ],
)
def test_what_cannot_be_is_said_with_the_bound_that_was_hit(
    wrong: dict[str, object], said: str
) -> None:
    config = SizeConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        size_plan(config)
    assert said in str(caught.value)


def test_a_pair_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(app, ["plan", "size", "--pools", "2"])
    assert "write prefill and decode as 2:1" in str(result.exception)


@pytest.mark.parametrize("name", model_names())
def test_every_built_in_model_has_a_plan(name: str) -> None:
    topics = size_plan(SizeConfig(model=name, gpu="h200", gpus=16, link=tuple(LINKS)))
    assert all(figure.value > 0 for topic in topics for figure in topic.figures)


@given(
    rate=st.floats(0.1, 1000),
    lengths=st.tuples(*[st.integers(0, 10_000)] * 2),
    new=st.integers(1, 10_000),
    replicas=st.integers(1, 512),
)
def test_routing_by_cache_never_computes_more_than_routing_at_random(
    rate: float, lengths: tuple[int, int], new: int, replicas: int
) -> None:
    traffic = sizing.Traffic(rate=rate, shared=lengths[0], history=lengths[1], new=new, output=100)
    cost = LinearCost()
    random, aware = (
        sizing.prefill_work(traffic, cost, cached=traffic.cached_tokens(num_replicas=spread))
        for spread in (replicas, 1)
    )
    assert aware.tokens_per_second <= random.tokens_per_second
    assert random.num_replicas * 10_000 == pytest.approx(random.tokens_per_second, abs=rate + 1e-6)


@given(tpot=st.floats(0.001, 1.0), kv_tokens=st.integers(0, 10_000_000))
def test_the_largest_batch_is_the_largest(tpot: float, kv_tokens: int) -> None:
    traffic = sizing.Traffic(rate=1.0, new=1000, output=200)
    cost, context = LinearCost(), 1100
    found = sizing.decode_work(traffic, cost, tpot=tpot, kv_tokens=kv_tokens)
    batch = found.max_batch
    fits = batch * context <= kv_tokens
    in_time = sizing.step_seconds(cost, batch=batch, context=context) <= tpot * (1 + 1e-9)
    assert batch == 0 or (fits and in_time)
    more = batch + 1
    assert more * context > kv_tokens or (
        sizing.step_seconds(cost, batch=more, context=context) > tpot
    )
    assert found.num_replicas > 0
    assert math.isinf(found.num_replicas) == (batch == 0)


OWN = """
model = "mine"
gpu = "b300"
gpus = 4
new = 1000
link = ["rail"]

[own.gpus.b300]
flops = 2.5e15
memory-bandwidth = 8e12
memory-bytes = 288e9

[own.links.rail]
bytes-per-second = 1e11
latency-seconds = 0.001

[own.models.mine]
params = 30e9
layers = 48
heads = 32
kv-heads = 4
"""


def test_own_facts_stand_beside_the_built_in_ones(tmp_path: Path) -> None:
    """48 x 2 x 4 x 128 x 2 B; 98 MB over 4 x 100 GB/s are 0.25 ms, and 1 ms to begin."""
    file = tmp_path / "fleet.toml"
    file.write_text(OWN)
    found = figures(shlex.quote(str(file)), tmp_path)
    assert found["kv_bytes_per_token"] == 98_304
    assert found["kv_tokens_per_replica"] == (0.9 * 4 * 288e9 - 60e9) // 98_304
    assert found["transfer_seconds_rail"] == pytest.approx(0.001246, rel=1e-3)


def test_every_fact_has_a_source() -> None:
    result = CliRunner().invoke(app, ["plan", "facts"])
    assert result.exit_code == 0
    assert "NVIDIA H100 product page" in result.output
    sources = [gpu.source for gpu in GPUS.values()] + [link.source for link in LINKS.values()]
    sources += [named_model(name).source for name in model_names()]
    assert all(sources)
