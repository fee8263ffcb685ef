"""`expediter simulate` as a person meets it: in a process of its own."""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from expediter.config import PolicyName
from expediter.simulation.catalog import cost_names
from expediter.workload.catalog import named_workload, workload_names
from expediter.workload.storage import write_workload
from expediter.workload.transcript import Segment

SMALL = ("--requests", "300", "--workers", "4", "--block-size", "128")


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "expediter", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def result(path: Path, *arguments: str) -> dict[str, Any]:
    """What it writes as JSON."""
    run = simulate(*arguments, "--json", str(path))
    assert (run.returncode, run.stderr) == (0, "")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def of_all(found: dict[str, Any], field: str) -> dict[str, Any]:
    """A figure of all requests, by policy."""
    return {run["policy"]: run["classes"][0][field] for run in found["runs"]}


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path: Path) -> None:
    def once(name: str, seed: str) -> bytes:
        policies = ("--policy", "random", "--policy", "preble", "--policy", "dynamo")
        result(tmp_path / name, "--workload", "chat", *SMALL, *policies, "--seed", seed)
        return (tmp_path / name).read_bytes()

    first = once("a", "1")
    assert once("b", "1") == first
    assert json.loads(once("c", "2"))["runs"] != json.loads(first)["runs"]


def test_on_the_demo_cache_aware_finds_most_and_round_robin_much_less(tmp_path: Path) -> None:
    """94 % and 55 % after 5,000 requests; here from a cold start."""
    found = result(tmp_path / "a", "--workload", "demo", *SMALL, "--requests", "1500")
    rates = of_all(found, "token_hit_rate")
    assert list(rates) == ["cache-aware", "round-robin"]
    assert rates["cache-aware"] > 0.85
    assert rates["round-robin"] < rates["cache-aware"] - 0.1
    assert set(of_all(found, "num_failed").values()) == {0}


def test_every_policy_has_a_row_in_the_table_and_in_the_csv(tmp_path: Path) -> None:
    policies = get_args(PolicyName)
    given = [word for name in policies for word in ("--policy", name)]
    rows = tmp_path / "rows.csv"
    run = simulate("--workload", "demo", *SMALL, *given, "--csv", str(rows))
    assert (run.returncode, run.stderr) == (0, "")
    assert all(name in run.stdout for name in policies)
    with rows.open() as file:
        read = [row["policy"] for row in csv.DictReader(file) if row["label"] == "all"]
    assert read == list(policies)


def test_a_file_says_the_same_as_arguments_and_arguments_win(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(
        'workload = "robots"\nrate = 40.0\nrequests = 200\nworkers = 2\nblock-size = 64\n'
        'policy = ["random"]\nttft = 0.1\nseed = 7\n[routing]\nslack-tokens = 64\n'
        '[scheduler]\npolicy = "longest-prefix"\n'
    )
    said = result(tmp_path / "a", str(file), "--seed", "8")
    assert said["experiment"]["seed"] == 8
    assert said["experiment"]["routing"]["slack-tokens"] == 64
    scheduler = said["experiment"]["scheduler"]
    assert (scheduler["policy"], scheduler["max-batched-tokens"]) == ("longest-prefix", 8192)
    words = "--workload robots --rate 40 --requests 200 --workers 2 --block-size 64 --ttft 0.1"
    typed = result(tmp_path / "b", *words.split(), "--policy", "random", "--seed", "8")
    assert typed["runs"] == said["runs"]


def test_a_trace_is_replayed_as_recorded_or_at_another_rate(tmp_path: Path) -> None:
    """The recording has 20 requests a second; at 5 the same ones take four times as long."""
    trace = tmp_path / "trace.jsonl"
    write_workload(trace, named_workload("demo", rate=20.0, num_requests=200, seed=3))
    recorded = ("--trace", str(trace), "--format", "workload", "--policy", "round-robin", *SMALL)
    as_it_was = result(tmp_path / "a", *recorded)["runs"][0]["seconds"]
    slower = result(tmp_path / "b", *recorded, "--rate", "5")["runs"][0]["seconds"]
    assert as_it_was == pytest.approx(200 / 20, rel=0.35)
    assert slower == pytest.approx(200 / 5, rel=0.15)


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_has_as_many_requests_as_asked_for(name: str) -> None:
    def once(seed: int) -> list[tuple[float, float | None, Sequence[Segment]]]:
        turns = named_workload(name, rate=20.0, num_requests=150, seed=seed)
        return [(t.arrival_time, t.think_time, t.transcript.segments) for t in turns]

    assert len(once(1)) == 150
    assert once(1) == once(1)


POLICIES = ", ".join(sorted(get_args(PolicyName)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--policy", "best"),
            f"policy[0]: Invalid enum value 'best'; allowed are {POLICIES}",
        ),
        (
            ("--cost", "gpt"),
            f"no cost model is called 'gpt'; there are {', '.join(cost_names())}",
        ),
        (
            ("--workload", "talk"),
            f"no workload is called 'talk'; there are {', '.join(workload_names())}",
        ),
        (
            ("--trace", "a", "--format", "zip"),
            "format: Invalid enum value 'zip'; allowed are azure, burstgpt, mooncake, workload",
        ),
        (("--trace", "a", "--format", "azure"), "a: No such file or directory"),
        (("--trace", "a"), "trace and format: one needs the other"),
        (
            ("--trace", "a", "--format", "azure", "--workload", "chat"),
            "workload and trace: there can be only one of them",
        ),
        (("--rate", "0"), "rate: Expected `float` > 0.0"),
        (("--json", "none/a.json"), "none/a.json: there is no folder none"),
        (("none.toml",), "none.toml: No such file or directory"),
    ],
)
def test_what_cannot_be_simulated_is_one_line_and_status_2(
    arguments: Sequence[str], message: str
) -> None:
    run = simulate(*arguments)
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("polices = []", "polices: unknown key; did you mean policy?"),
        ("[routing]\nslack-token = 1", "routing.slack-token: unknown key; did you mean"),
        ('[routing]\npolicy = "random"', "routing: policy and block-size are not in this section"),
        ("policy = []", "policy: Expected `array` of length >= 1"),
        ('policy = ["preble"]\n[routing.preble]\ngpu-cost = "x"', "gpu-cost is 'x'; allowed are"),
    ],
)
def test_a_file_that_is_wrong_is_one_line_and_status_2(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    run = simulate(str(file))
    assert (run.returncode, run.stdout) == (2, "")
    assert message in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_row_of_a_trace_that_is_wrong_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 1}\n')
    run = simulate("--trace", str(trace), "--format", "mooncake")
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {trace}:1: ")


def test_a_file_may_hold_service_levels_faults_and_a_network(tmp_path: Path) -> None:
    """The worker that is down for the whole run answers nothing of what it was given."""
    file = tmp_path / "experiment.toml"
    file.write_text(
        'workload = "hot-prefix"\nrequests = 200\nworkers = 2\nblock-size = 128\n'
        'policy = ["round-robin"]\nttft = 0.000001\ngpus = 4\n'
        '[[slo]]\nclass = "A"\nttft = 1000.0\n'
        '[[faults]]\nkind = "crash"\nworker = 0\nat = 0.0\nseconds = 100.0\n'
        '[[faults]]\nkind = "slowdown"\nworker = 1\nat = 0.0\nseconds = 100.0\nfactor = 2.0\n'
        "[network]\nrequest-seconds = 0.25\n"
    )
    run = result(tmp_path / "a", str(file))["runs"][0]
    classes = {c["label"]: c for c in run["classes"]}
    assert run["num_gpus"] == 8
    assert classes["A"]["attainment"]["value"] == 1.0
    assert classes["B"]["attainment"]["value"] == 0.0
    assert classes["all"]["ttft"]["p50"]["value"] > 0.25
    assert [worker["num_prompt_tokens"] > 0 for worker in run["workers"]] == [False, True]


def test_roles_and_links_are_options_that_win_over_the_file(tmp_path: Path) -> None:
    """At 1 Gb/s of each of 8 GPUs, 1,000 tokens of a 70B model take a third of a second."""
    file = tmp_path / "experiment.toml"
    file.write_text(
        'workload = "demo"\nrequests = 100\nblock-size = 64\npolicy = ["slo"]\nprefill = 1\n'
        "[links]\ninter-node-gbps = 400.0\nlatency-us = 5.0\n"
        '[disaggregation]\nsplit = "always"\nhandover = "vllm"\n'
    )
    slow = result(tmp_path / "a", str(file), "--decode", "2", "--inter-node-gbps", "1")
    links = slow["experiment"]["links"]
    assert (links["inter-node-gbps"], links["latency-us"]) == (1.0, 5.0)
    (run,) = slow["runs"]
    assert [worker["transferred_bytes"] > 0 for worker in run["workers"]] == [False, True, True]
    assert run["reasons"]["split"] > 50
    fast = result(tmp_path / "b", str(file), "--decode", "2")
    exposed = [of_all(found, "transfer")["slo"]["mean"]["value"] for found in (slow, fast)]
    assert exposed[0] > 50 * exposed[1] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[slo]]\nttft = 1.0", "Object missing required field `class`"),
        ('[[faults]]\nkind = "fire"\nworker = 0\nat = 0.0\nseconds = 1.0', "Invalid value 'fire'"),
        (
            'workers = 2\n[[faults]]\nkind = "crash"\nworker = 2\nat = 0.0\nseconds = 1.0',
            "faults: there is no worker 2 of 2 from 0",
        ),
        ("[network]\nevent-loss = 1.5", "network.event-loss: Expected `float` <= 1"),
        ("prefill = 1", "prefill and decode: one needs the other"),
        ("both = 2", "both: only beside workers for prefill or decode"),
        (
            'cost = "linear"\nprefill = 1\ndecode = 1',
            "links.kv-bytes-per-token: linear does not say which model it is of",
        ),
        (
            '[[faults]]\nkind = "transfer-failure"\nworker = 0\nat = 0.0\nseconds = 1.0',
            "faults: transfers fail only where workers have roles",
        ),
        (
            'prefill = 1\ndecode = 1\n[disaggregation]\nhandover = "sglang"',
            "pairs of SGLang are not simulated",
        ),
    ],
)
def test_a_fault_that_cannot_be_is_one_line_and_status_2(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    run = simulate(str(file))
    assert (run.returncode, run.stdout) == (2, "")
    assert message in run.stderr
