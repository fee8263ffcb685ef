"""The live worker, dispatcher and policies on the virtual clock."""

import random
from dataclasses import replace

import msgspec
import pytest
from fleets import (
    cache_aware,
    fleet,
    least_loaded,
    poisson,
    random_policy,
    round_robin,
    text,
    turn,
)

from expediter.errors import SimulationStalled
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.simulation.answer import Answer
from expediter.simulation.client import Network
from expediter.simulation.costs import LinearCost
from expediter.simulation.executor import SimulatedExecutor
from expediter.simulation.experiment import MakePolicy, simulate
from expediter.simulation.fleet import Crash, Slowdown
from expediter.simulation.grid import packaged_grid
from expediter.simulation.report import Objective, report
from expediter.workload.turn import Turn


def times(answer: Answer) -> tuple[float, float, float]:
    """When it was scheduled, began and ended, in seconds after its arrival."""
    assert answer.scheduled_at is not None
    assert answer.first_token_at is not None
    assert answer.finished_at is not None
    start = answer.arrived_at
    return answer.scheduled_at - start, answer.first_token_at - start, answer.finished_at - start


def test_one_request_takes_its_prefill_and_then_a_decode_step_a_token() -> None:
    """1,000 tokens at 0.1 ms, then 9 steps of 20.2 ms: the first of 10 comes with the prompt."""
    turns = [turn(0.0, text("a", 1000), 10)]
    run = simulate(fleet(), turns, policy=round_robin, name="round robin")
    assert times(run.answers[0]) == pytest.approx((0.0, 0.1, 0.1 + 9 * 0.0202))
    assert run.workers[0].num_steps == 10
    assert run.workers[0].num_jumps == 2


def test_an_arrival_waits_for_the_running_step_and_no_longer() -> None:
    """The second comes 5 ms into the third decode step and starts when that step ends."""
    turns = [
        turn(0.0, text("a", 1000), 100),
        turn(0.1 + 2 * 0.0202 + 0.005, text("b", 500), 2),
    ]
    run = simulate(fleet(num_workers=1), turns, policy=round_robin, name="round robin")
    scheduled, began, ended = times(run.answers[1])
    assert scheduled == pytest.approx(0.0202 - 0.005)
    assert began - scheduled == pytest.approx(0.05 + 0.0202)  # its prompt beside a decode
    assert ended - began == pytest.approx(0.0204)  # two decode


def test_an_arrival_at_the_end_of_a_step_is_in_the_next() -> None:
    turns = [
        turn(0.0, text("a", 1000), 100),
        turn(0.1 + 2 * 0.0202, text("b", 500), 2),
    ]
    run = simulate(fleet(num_workers=1), turns, policy=round_robin, name="round robin")
    assert times(run.answers[1])[0] == pytest.approx(0.0)


def mixed_workload(seed: int, *, num: int = 150, rate: float = 8.0) -> list[Turn]:
    """Prompts that share a first part, of all lengths."""
    rng = random.Random(seed)
    shared = [text(f"system {number}", 1500) for number in range(3)]
    turns = []
    for at in poisson(rate, num=num, seed=seed):
        prompt = text(f"user at {at}", rng.randrange(1, 3000), after=rng.choice(shared))
        label = rng.choice(["short", "long"])
        turns.append(turn(at, prompt, rng.randrange(1, 120), label=label))
    return turns


@pytest.mark.parametrize("kv_tokens", [1_000_000, 20_000])
def test_a_jump_is_the_same_as_its_steps(kv_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory is short and requests are preempted."""
    model = fleet(kv_tokens=kv_tokens)
    turns = mixed_workload(seed=5)
    jumped = simulate(model, turns, policy=round_robin, name="")

    execute = SimulatedExecutor.execute

    async def one_step(self: SimulatedExecutor, output: SchedulerOutput) -> ModelOutput:
        return await execute(self, msgspec.structs.replace(output, max_steps=1))

    monkeypatch.setattr(SimulatedExecutor, "execute", one_step)
    stepped = simulate(model, turns, policy=round_robin, name="")

    assert sum(w.num_jumps for w in jumped.workers) < sum(w.num_jumps for w in stepped.workers) / 3
    for one, other in zip(jumped.answers, stepped.answers, strict=True):
        assert times(one) == pytest.approx(times(other), abs=1e-6)
        assert one.cached_tokens == other.cached_tokens
    for field in ("num_steps", "num_preemptions", "num_prompt_tokens"):
        assert [getattr(w, field) for w in jumped.workers] == [
            getattr(w, field) for w in stepped.workers
        ]


@pytest.mark.parametrize("policy", [cache_aware, random_policy, least_loaded])
def test_equal_runs_give_equal_bytes(policy: MakePolicy) -> None:
    def once(seed: int) -> bytes:
        network = Network(request_seconds=0.001, event_seconds=0.01, event_loss=0.2)
        model = fleet(num_workers=3, network=network, kv_tokens=30_000)
        run = simulate(model, mixed_workload(seed=2), policy=policy, name="p", seed=seed)
        return report([run], objectives={"short": Objective(ttft=0.2)}).to_json()

    assert once(1) == once(1)
    assert policy is not random_policy or once(1) != once(2)


def test_a_conversation_stays_where_its_history_is() -> None:
    turns = [turn(0.0, text("system", 1000), 100)]
    for number in range(1, 6):
        prompt = text(f"question {number}", 400, after=turns[-1].transcript)
        turns.append(turn(20.0 * number, prompt, 100))
    run = simulate(fleet(num_workers=4), turns, policy=cache_aware, name="")
    assert len({answer.worker_id for answer in run.answers}) == 1
    # The last token of an answer has no KV, so its block is not full.
    cached = [answer.cached_tokens for answer in run.answers]
    assert cached == [0, *(1000 + 500 * number for number in range(5))]
    assert [answer.matched_tokens for answer in run.answers] == cached
    assert run.answers[-1].reason == "longest-match"


def test_a_session_thinks_before_its_next_turn() -> None:
    """Sent 3 s after the answer before has ended, whenever that was."""
    first = msgspec.structs.replace(turn(1.0, text("a", 1000), 10), session="s")
    prompt = text("b", 500, after=first.transcript)
    second = msgspec.structs.replace(turn(1.0, prompt, 10), session="s", think_time=3.0)
    run = simulate(fleet(), [first, second], policy=round_robin, name="")
    ends = [answer.finished_at for answer in run.answers]
    assert ends[0] is not None
    assert run.answers[1].arrived_at == pytest.approx(ends[0] + 3)


def test_the_network_delays_what_it_carries() -> None:
    network = Network(request_seconds=0.010, response_seconds=0.020)
    turns = [turn(0.0, text("a", 1000), 10)]
    run = simulate(fleet(network=network), turns, policy=round_robin, name="")
    assert times(run.answers[0]) == pytest.approx((0.01, 0.13, 0.13 + 9 * 0.0202))


def test_events_that_come_late_let_the_router_miss_a_hit() -> None:
    turns = [turn(at, text("a", 2000), 1) for at in (0.0, 1.0, 30.0)]
    late = Network(event_seconds=10.0)
    run = simulate(fleet(network=late), turns, policy=cache_aware, name="")
    # An answer counts as cached for 5 s whatever events say, so the second still matches.
    assert [answer.matched_tokens for answer in run.answers] == [0, 1900, 1900]
    lost = Network(event_loss=1.0)
    run = simulate(fleet(network=lost), turns, policy=cache_aware, name="")
    assert [answer.matched_tokens for answer in run.answers] == [0, 1900, 0]


def test_a_crash_loses_answers_that_began_and_moves_those_that_did_not() -> None:
    """Round robin: worker 0 has the first and the third request when it dies at 1 s."""
    turns = [
        turn(0.0, text("a", 1000), 200),
        turn(0.0, text("b", 1000), 200),
        turn(0.9, text("c", 8000), 2),
        turn(2.0, text("d", 1000), 2),
        turn(30.0, text("e", 1000), 2),
    ]
    crash = Crash(worker=0, at=1.0, seconds=10.0)
    run = simulate(fleet(faults=[crash]), turns, policy=round_robin, name="")
    first, second, third, fourth, fifth = run.answers
    assert first.error == "worker_lost"
    assert first.first_token_at is not None
    assert second.is_complete
    assert third.is_complete
    assert (third.num_tries, third.worker_id) == (2, "worker-1")
    assert fourth.worker_id == "worker-1"
    assert fifth.worker_id == "worker-0"


def test_a_worker_that_comes_back_holds_nothing() -> None:
    turns = [turn(at, text("a", 2000), 1) for at in (0.0, 10.0, 30.0)]
    crash = Crash(worker=0, at=12.0, seconds=5.0)
    run = simulate(fleet(num_workers=1, faults=[crash]), turns, policy=cache_aware, name="")
    assert [answer.cached_tokens for answer in run.answers] == [0, 1900, 0]
    assert [answer.matched_tokens for answer in run.answers] == [0, 1900, 0]


def test_a_slow_worker_gets_less_when_the_router_looks_at_load() -> None:
    turns = mixed_workload(seed=3, num=200, rate=5.0)
    slow = Slowdown(worker=0, at=0.0, seconds=1000.0, factor=4.0)
    model = fleet(faults=[slow])
    by_load = simulate(model, turns, policy=least_loaded, name="least loaded")
    in_turn = simulate(model, turns, policy=round_robin, name="round robin")
    slow_share = [
        sum(a.worker_id == "worker-0" for a in run.answers) / 200 for run in (by_load, in_turn)
    ]
    assert slow_share[0] < 0.35
    assert slow_share[1] == pytest.approx(0.5, abs=0.01)
    ttft = [
        c.ttft.mean.value for c in (r.classes[0] for r in report([by_load, in_turn]).runs) if c.ttft
    ]
    assert ttft[0] < ttft[1]


def test_a_request_that_can_never_run_is_answered_with_an_error() -> None:
    turns = [turn(0.0, text("a", 59_000), 10)]
    run = simulate(fleet(kv_tokens=50_000), turns, policy=round_robin, name="")
    assert run.answers[0].status == 400
    assert not run.answers[0].is_complete


def test_a_fleet_that_makes_no_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinearCost, "seconds", lambda self, work: float("inf"))  # noqa: ARG005
    turns = [turn(0.0, text("a", 1000), 10)]
    with pytest.raises(SimulationStalled, match="1 requests are open and no step ran"):
        simulate(fleet(), turns, policy=round_robin, name="")


def test_a_fleet_runs_on_a_grid_too() -> None:
    model = fleet(cost=packaged_grid("llama3-8b_h100_sxm_vllm_tp1"))
    run = simulate(model, mixed_workload(seed=4, num=50), policy=cache_aware, name="")
    assert all(answer.is_complete for answer in run.answers)
    slower = replace(model, num_workers=1)
    alone = simulate(slower, mixed_workload(seed=4, num=50), policy=cache_aware, name="")
    assert alone.seconds > run.seconds
