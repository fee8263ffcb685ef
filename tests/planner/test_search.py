"""Placement searches small enough to run whole, and what is written for the winner."""

import random
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from expediter.cli.app import app
from expediter.clock import Clock
from expediter.config import RoutingConfig, SchedulerConfig
from expediter.errors import ConfigError
from expediter.planner import launch
from expediter.planner.candidates import Candidates
from expediter.planner.deployment import Deployment, Instance, Pool
from expediter.planner.search import Found, PlacementSearch, pareto
from expediter.planner.settings import GoodputConfig, SearchConfig
from expediter.planner.trial import Policy, Stage, Trial, run_trial, traffic_of
from expediter.routing.policy import LeastLoaded, RoutingPolicy
from expediter.settings import check
from expediter.simulation.catalog import named_cost
from expediter.simulation.costs import LinearCost
from expediter.simulation.runners import in_processes

SMALL = SearchConfig(
    model="opt-13b",
    gpu="a100",
    gpus=4,
    cost="opt-13b-tp{tp}-distserve",
    workload="sharegpt",
    requests=80,
    samples=1,
    tolerance=0.1,
    ttft=0.4,
    tpot=0.1,
    budgets=(2048,),
    finalists=4,
    memory_share=0.93,
    min_context=2048,
    prefix_caching=False,
)


def by_load(config: RoutingConfig, *, clock: Clock, rng: random.Random) -> RoutingPolicy:
    del config, clock, rng
    return LeastLoaded()


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return PlacementSearch(SMALL, build_policy=by_load).run()


def test_the_best_come_first_and_both_kinds_are_there(found: list[Found]) -> None:
    rates = [each.rate_per_gpu for each in found]
    assert rates == sorted(rates, reverse=True)
    assert {each.deployment.decode is None for each in found} == {True, False}
    assert all(each.deployment.num_gpus <= 4 for each in found)
    assert all(each.goodput.attainment is not None for each in found)


def test_other_processes_find_the_same(found: list[Found]) -> None:
    again = PlacementSearch(SMALL, build_policy=by_load).run(runner=in_processes(2))
    assert [(f.deployment.name, f.goodput) for f in again] == [
        (f.deployment.name, f.goodput) for f in found
    ]


def test_the_front_has_nobody_who_is_beaten_with_as_few_gpus(found: list[Found]) -> None:
    front = pareto(found)
    rates = [each.goodput.rate for each in front]
    assert rates == sorted(set(rates))
    for each in found:
        assert any(
            f.deployment.num_gpus <= each.deployment.num_gpus
            and f.goodput.rate >= each.goodput.rate
            for f in front
        )


def test_shapes_divide_heads_and_layers_and_fit() -> None:
    """OPT-13B's 26 GB fit on one A100; 40 heads and 40 layers can be cut by 1, 2 and 4."""
    shapes = [each.shape for each in PlacementSearch(SMALL, build_policy=by_load).instances]
    assert shapes == ["TP1", "TP2", "TP1xPP2", "TP4", "TP2xPP2", "TP1xPP4"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "opt-175b"}, "no way to cut opt-175b fits on 4 x a100: its weights take 350 GB"),
        (
            {"model": "opt-66b", "gpus": 2, "min_context": 9000},
            "tokens of KV are left; a context of 9,000 is asked for",
        ),
        ({"tpot": 0.001}, "of a tpot of 1.00 ms"),
        ({"ttft": 0.001}, "the fastest prefill takes"),
        ({"gpu": "abacus"}, "no GPU is called 'abacus'"),
    ],
)
def test_what_cannot_be_is_said_with_the_bound(change: dict[str, object], said: str) -> None:
    tree = {name: getattr(SMALL, name) for name in SMALL.__struct_fields__} | change
    with pytest.raises(ConfigError) as caught:
        PlacementSearch(SearchConfig(**tree), build_policy=by_load).run()
    assert said in str(caught.value)


def test_two_pools_are_sized_so_that_neither_waits_for_the_other() -> None:
    """5.6 and 10 requests/s an instance on 3 GPUs: 2 + 1, as in DistServe's introduction."""
    one = Instance(tp=1, cost=LinearCost(), kv_tokens=1_000_000)
    config = SearchConfig(model="opt-13b", gpu="a100", gpus=3, ttft=1.0, tpot=1.0)
    best = Candidates(config=config, kv_bytes_per_token=819_200).whole(
        colocated={(one, 512): 1.6}, prefill={(one, 512): 5.6}, decode={one: 10.0}
    )[0]
    assert best.deployment.name == "2 x TP1 + 1 x TP1"
    assert best.predicted == pytest.approx(10.0)


def test_pairs_that_must_share_nodes_have_equal_pipelines_and_fit_a_node() -> None:
    def instance(tp: int, pp: int) -> Instance:
        return Instance(tp=tp, pp=pp, cost=LinearCost(), kv_tokens=1_000_000)

    rates = {instance(4, 1): 1.0, instance(2, 2): 1.0, instance(8, 1): 1.0}
    config = SearchConfig(model="opt-66b", gpu="a100", gpus=16, ttft=1.0, tpot=1.0)
    found = Candidates(config=config, kv_bytes_per_token=1).whole(
        colocated={}, prefill={(i, 512): rate for i, rate in rates.items()}, decode=rates
    )
    pairs = [c.deployment for c in found if c.kind == "pairs within nodes"]
    assert {d.name for d in pairs} == {"2 x TP4 + 2 x TP4", "2 x TP2xPP2 + 2 x TP2xPP2"}


def test_the_published_choice_for_13b_serves_what_was_published() -> None:
    """DistServe's README: 1.56 requests/s a GPU, prefill TP2 and decode TP1, 200/100 ms."""
    traffic = GoodputConfig(
        workload="sharegpt", ttft=0.2, tpot=0.1, prefix_caching=False, samples=2
    )
    scheduler = SchedulerConfig(max_batched_tokens=2048, max_running=256, chunked_prefill=False)

    def pool(tp: int, kv_tokens: int) -> Pool:
        cost = named_cost(f"opt-13b-tp{tp}-distserve")
        return Pool(
            instance=Instance(tp=tp, cost=cost, kv_tokens=kv_tokens),
            num_instances=1,
            scheduler=scheduler,
            prefix_caching=False,
        )

    trial = Trial(
        deployment=Deployment(prefill=pool(2, 163_008), decode=pool(1, 66_144)),
        stage=Stage.WHOLE,
        traffic=traffic_of(traffic),
        policy=Policy(build=by_load, config=RoutingConfig(policy="least-loaded")),
        start=2.0,
    )
    assert run_trial(trial).rate / 3 == pytest.approx(1.56, rel=0.15)


def split(prefill: tuple[int, int], decode: tuple[int, int], *, tp: int = 2) -> Deployment:
    def pool(num: int, pp: int) -> Pool:
        instance = Instance(tp=tp, pp=pp, cost=LinearCost(), kv_tokens=1_000_000)
        return Pool(instance=instance, num_instances=num)

    return Deployment(prefill=pool(*prefill), decode=pool(*decode))


def test_every_gpu_is_given_out_once_and_nobody_straddles_nodes() -> None:
    found = launch.processes(split((2, 1), (3, 1)), gpus_per_node=8)
    taken = [(process.node, gpu) for process in found for gpu in process.gpus]
    assert len(taken) == len(set(taken)) == 10
    assert [process.role for process in found[:2]] == ["prefill", "decode"]
    assert all(process.num_nodes == 1 for process in found)
    large = launch.processes(split((1, 8), (1, 1)), gpus_per_node=8)
    assert (large[0].num_nodes, large[1].node) == (2, 2)


def test_the_gateway_takes_the_file_and_engines_get_their_sizes() -> None:
    found = launch.processes(split((1, 1), (1, 2)), gpus_per_node=8)
    config = check(tomllib.loads(launch.gateway_settings(found, policy="cache-aware")))
    assert [str(worker.role) for worker in config.gateway.workers] == ["prefill", "decode"]
    commands = launch.commands(found, model="org/model")
    assert commands.count("vllm serve org/model") == 2
    assert "--pipeline-parallel-size 2" in commands
    assert "--disaggregation-mode decode" in commands
    assert "CUDA_VISIBLE_DEVICES=2,3,4,5 \\\n    VLLM_NIXL_SIDE_CHANNEL_PORT=5601" in commands


def test_the_command_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("json", "plot", "config", "commands")}
    asked = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    settings = ["--set", "samples=1", "--set", "finalists=2", "--set", "budgets=[2048]"]
    line = "plan search --model opt-13b --gpu a100 --gpus 1 --cost opt-13b-tp{tp}-distserve"
    line += " --workload humaneval --requests 60 --ttft 0.4 --tpot 0.2 --processes 1 --price 2"
    result = CliRunner().invoke(app, [*line.split(), *settings, *asked])
    assert result.exit_code == 0, result.output + str(result.exception)
    assert "1 x TP1" in result.output
    assert all(path.stat().st_size for path in files.values())
    assert "<svg" in files["plot"].read_text("utf-8")


def test_goodput_of_one_deployment_from_the_command_line() -> None:
    line = "plan goodput --workload humaneval --requests 60 --ttft 0.4 --tpot 0.1 --gpus 1"
    line += " --cost opt-13b-tp1-distserve --replicas 1 --decode 1 --cache-tokens 66144"
    result = CliRunner().invoke(app, [*line.split(), "--set", "samples=1"])
    assert result.exit_code == 0, result.output + str(result.exception)
    assert "1 x TP1 + 1 x TP1" in result.output
