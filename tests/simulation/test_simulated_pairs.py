"""Prefill on one simulated worker and decode on another: the live hand-over on simulated links.

Prompts take 0.1 ms a token and a decode step 20 ms and 0.2 ms a request; a token's KV has 1,000
bytes, so at 10 MB/s it takes a prompt exactly as long to move as to be computed.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fleets import fleet, poisson, round_robin, text, turn

from expediter.config import DisaggregationConfig
from expediter.config.disaggregation import RebalanceConfig
from expediter.simulation.answer import Answer
from expediter.simulation.experiment import Run, simulate
from expediter.simulation.fabric import Fabric
from expediter.simulation.fleet import FleetModel
from expediter.simulation.links import Interconnect
from expediter.simulation.report import report
from expediter.simulation.stages import Stages
from expediter.workload.turn import Turn

EVEN = 10e6  # bytes a second that keep up with prefill exactly
STEP = 0.0202  # seconds of a decode step of one request


def pairs(
    *,
    roles: tuple[int, int, int] = (1, 1, 0),
    bandwidth: float = 10 * EVEN,
    kv_tokens: int = 1_000_000,
    overlaps: bool = True,
    **settings: object,
) -> FleetModel:
    """So many workers for prefill, for decode and for both, each with one NIC and no NVLink."""
    prefill, decode, both = roles
    interconnect = Interconnect(num_gpus=1, num_nics=1, nic_bandwidth=bandwidth)
    return replace(
        fleet(num_workers=prefill + decode + both, kv_tokens=kv_tokens),
        num_prefill=prefill,
        num_decode=decode,
        fabric=Fabric(interconnect=interconnect, kv_bytes_per_token=1000, overlaps=overlaps),
        disaggregation=DisaggregationConfig(**({"split": "always"} | settings)),  # type: ignore[arg-type]
    )


def run(model: FleetModel, turns: Sequence[Turn]) -> Run:
    return simulate(model, turns, policy=round_robin, name="pairs")


def stages(answer: Answer) -> tuple[float, ...]:
    """Queueing, prefill, transfer and decode, which are all of its time."""
    found = Stages(answer)
    parts = (found.queueing, found.prefill, found.transfer, found.decode)
    assert sum(parts) == pytest.approx(found.e2e)
    assert all(part >= -1e-9 for part in parts)
    return parts


@pytest.mark.parametrize(
    ("bandwidth", "overlaps", "handover", "exposed"),
    [
        (10 * EVEN, True, "auto", 0.0),
        (EVEN, True, "auto", 0.0),
        (EVEN / 2, True, "auto", 0.1),  # half of it is there when the prompt is computed
        (EVEN, False, "auto", 0.1),  # nothing can be read before the step is over
        (EVEN, True, "vllm", 0.1),  # nor is it asked for
        (EVEN / 2, True, "vllm", 0.2),
    ],
)
def test_what_the_link_cannot_move_during_prefill_is_exposed_and_the_first_token_does_not_wait(
    bandwidth: float, overlaps: bool, handover: str, exposed: float
) -> None:
    model = pairs(bandwidth=bandwidth, overlaps=overlaps, handover=handover)
    found = run(model, [turn(0.0, text("a", 1000), 10)])
    (answer,) = found.answers
    assert (answer.worker_id, answer.prefill_worker_id) == ("worker-1", "worker-0")
    assert stages(answer) == pytest.approx((0.0, 0.1, exposed, 9 * STEP), abs=1e-6)
    assert Stages(answer).ttft == pytest.approx(0.1)
    assert [worker.transferred_bytes for worker in found.workers] == [0, 1_000_000]


def test_two_transfers_to_one_worker_share_its_link() -> None:
    """Each of two prompts would take as long as its prefill; together they take twice that."""
    turns = [turn(0.0, text("a", 1000), 10), turn(0.0, text("b", 1000), 10)]
    found = run(pairs(roles=(2, 1, 0), bandwidth=EVEN), turns)
    assert {answer.prefill_worker_id for answer in found.answers} == {"worker-0", "worker-1"}
    assert [stages(answer)[2] for answer in found.answers] == pytest.approx([0.1, 0.1])


def test_only_blocks_that_the_decode_worker_lacks_are_moved() -> None:
    first = text("a", 1000)
    following = text("b", 500, after=first)
    turns = [turn(0.0, first, 10), turn(5.0, following, 10)]
    found = run(pairs(min_uncached_tokens=0), turns)
    assert [answer.reason for answer in found.answers] == ["split", "split"]
    moved = [answer.transfer.bytes for answer in found.answers if answer.transfer is not None]
    assert moved == [1_000_000, 500_000]
    assert [answer.cached_tokens for answer in found.answers] == [0, 1000]  # at the prefill worker
    assert [answer.matched_tokens for answer in found.answers] == [0, 1000]
    assert stages(found.answers[1])[1] == pytest.approx(0.05)


def test_a_decode_worker_without_room_lets_a_prompt_wait_at_its_source() -> None:
    """2,000 tokens fit: the second prompt of 1,500 is computed, and moves when the first ended."""
    turns = [turn(0.0, text("a", 1500), 50), turn(0.2, text("b", 1500), 50)]
    first, second = run(pairs(kv_tokens=2000, handover="vllm"), turns).answers
    assert first.finished_at is not None
    assert second.first_token_at == pytest.approx(first.finished_at)
    queueing, prefill, transfer, _ = stages(second)
    assert prefill == pytest.approx(0.15)
    assert queueing == pytest.approx(first.finished_at - second.arrived_at - 0.15)
    assert transfer == pytest.approx(0.015)


def test_short_prompts_stay_with_the_decode_worker_and_single_tokens_with_the_prefill_worker() -> (
    None
):
    turns = [
        turn(0.0, text("a", 200), 10),
        turn(2.0, text("b", 1000), 1),
        turn(4.0, text("c", 1000), 10),
    ]
    found = run(pairs(), turns)
    assert [answer.worker_id for answer in found.answers] == ["worker-1", "worker-0", "worker-1"]
    assert [answer.prefill_worker_id for answer in found.answers] == [None, None, "worker-0"]
    assert found.answers[0].reason == "short-prompt"


def test_a_request_is_split_only_where_that_is_predicted_to_cost_less() -> None:
    """Streams would stall at the decode worker, unless the prefill worker has a long queue."""
    quiet = run(pairs(split="predicted"), [turn(0.0, text("a", 1000), 10)])
    assert quiet.answers[0].reason == "split"
    burst = [turn(0.01 * n, text(f"text {n}", 1000), 200) for n in range(12)]
    found = run(pairs(split="predicted"), burst)
    assert {answer.reason for answer in found.answers} == {"split", "together"}


def test_workers_for_both_are_partners_of_either() -> None:
    turns = [turn(at, text(f"text at {at}", 2000), 50) for at in poisson(8.0, num=40, seed=1)]
    found = run(pairs(roles=(1, 1, 2)), turns)
    assert all(answer.is_complete for answer in found.answers)
    computed = {answer.prefill_worker_id for answer in found.answers}
    assert computed == {"worker-0", "worker-2", "worker-3"}
    assert {answer.worker_id for answer in found.answers} == {"worker-1", "worker-2", "worker-3"}
    assert all(answer.worker_id != answer.prefill_worker_id for answer in found.answers)


def test_a_worker_changes_its_role_when_the_other_pool_is_short() -> None:
    """Prompts of 4,000 tokens come twice as fast as one worker computes them."""
    rebalance = RebalanceConfig(enabled=True, hold_seconds=2.0, pause_seconds=10.0)
    turns = [turn(0.2 * n, text(f"text {n}", 4000), 5) for n in range(100)]
    still = run(pairs(roles=(1, 2, 0)), turns)
    moving = run(pairs(roles=(1, 2, 0), rebalance=rebalance), turns)
    assert {answer.prefill_worker_id for answer in still.answers} == {"worker-0"}
    assert len({answer.prefill_worker_id for answer in moving.answers}) > 1
    assert all(answer.is_complete for answer in moving.answers)
    assert moving.seconds < 0.8 * still.seconds


def mixed_turns(seed: int, *, num: int = 120, rate: float = 10.0) -> list[Turn]:
    """Prompts of all lengths that share a first part."""
    rng = random.Random(seed)
    shared = [text(f"system {number}", 1500) for number in range(3)]
    return [
        turn(
            at,
            text(f"user at {at}", rng.randrange(1, 3000), after=rng.choice(shared)),
            rng.randrange(1, 60),
        )
        for at in poisson(rate, num=num, seed=seed)
    ]


def test_the_stages_of_every_request_add_up_and_a_run_is_a_function_of_its_inputs() -> None:
    model = pairs(roles=(2, 2, 1), bandwidth=EVEN)
    found = run(model, mixed_turns(3))
    for answer in found.answers:
        assert answer.is_complete
        stages(answer)
    assert {answer.reason for answer in found.answers} >= {"split", "short-prompt"}
    again = run(model, mixed_turns(3))
    assert report([again]).to_json() == report([found]).to_json()


def test_the_report_has_the_transfers() -> None:
    found = run(pairs(roles=(2, 2, 0), bandwidth=EVEN), mixed_turns(4))
    (told,) = report([found]).runs
    moved = sum(a.transfer.bytes or 0 for a in found.answers if a.transfer is not None)
    assert told.waste.transferred_bytes == moved > 0
    assert [worker.transferred_bytes > 0 for worker in told.workers] == [False, False, True, True]
    assert all(worker.num_requests for worker in told.workers)
    exposed = told.classes[0].transfer
    assert exposed is not None
    assert exposed.p99.value > 0
    # What is computed is what was not cached where it was computed: nothing twice.
    assert told.waste.lost_prompt_tokens == 0
