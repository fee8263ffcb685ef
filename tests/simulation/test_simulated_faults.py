"""Faults of a simulated fleet with pairs: every client is answered, no block stays held."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest
from fleets import fleet, least_loaded, round_robin, text, turn
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from test_simulated_pairs import EVEN, mixed_turns, pairs

from expediter.simulation import experiment
from expediter.simulation.client import Network
from expediter.simulation.experiment import Run, simulate
from expediter.simulation.fleet import (
    Crash,
    Fault,
    FleetModel,
    NetworkDelay,
    SimulatedFleet,
    Slowdown,
    StaleLoad,
    TransferFailure,
)
from expediter.simulation.report import report
from expediter.workload.turn import Turn

SETTLED = 200.0  # seconds: longer than any lease and any fault


class _Settling(SimulatedFleet):
    """Waits for what is still to be let go of, and looks."""

    held: dict[str, int]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with super().running():
            yield
            await asyncio.sleep(SETTLED)
            _Settling.held = {
                name: worker.load().num_used_blocks for name, worker in self.workers.items()
            }
            assert all(hands.is_idle for hands in self.hands.values())
            assert not any(self.dispatcher.work.num_requests(name) for name in self.workers)


@contextmanager
def settled() -> Iterator[None]:
    """Of a run within, nothing may be held anywhere afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "SimulatedFleet", _Settling)
        yield
    assert set(_Settling.held.values()) == {0}


def run(model: FleetModel, turns: Sequence[Turn], *, seed: int = 0) -> Run:
    """The run, after which nothing is held."""
    with settled():
        found = simulate(model, turns, policy=round_robin, name="faults", seed=seed)
    for answer in found.answers:
        assert answer.is_complete or answer.error is not None or answer.status >= 400
    return found


def errors(found: Run) -> set[str | None]:
    return {answer.error for answer in found.answers}


def failures(found: Run) -> set[str | None]:
    """Why transfers did not end well."""
    return {a.transfer.failure for a in found.answers if a.transfer is not None}


@pytest.mark.parametrize("handover", ["auto", "vllm"])
def test_transfers_that_break_cost_time_and_no_answer(handover: str) -> None:
    whole = pairs(roles=(2, 2, 0), bandwidth=EVEN, handover=handover)
    broken = replace(whole, fabric=replace(whole.fabric, failure_share=0.3))
    found = run(broken, mixed_turns(5))
    assert errors(found) == {None}
    assert failures(found) == {None, "copy_failed"}
    computed = sum(worker.num_prompt_tokens for worker in found.workers)
    assert computed > sum(w.num_prompt_tokens for w in run(whole, mixed_turns(5)).workers)
    decode = found.workers[2:]
    assert all(worker.num_prompt_tokens for worker in decode)  # what did not come is computed


def test_transfers_fail_from_a_time_on_and_for_a_time() -> None:
    fault = TransferFailure(worker=1, at=2.0, seconds=2.0)
    model = replace(pairs(bandwidth=EVEN), faults=[fault])
    turns = [turn(0.5 * n, text(f"text {n}", 1000), 5) for n in range(16)]
    found = run(model, turns)
    assert errors(found) == {None}
    first = found.answers[0].arrived_at
    broken = [a.arrived_at - first for a in found.answers if a.transfer and a.transfer.failure]
    assert broken == pytest.approx([2.0, 2.5, 3.0, 3.5])


def test_a_transfer_that_breaks_on_its_way_is_computed_from_where_its_whole_blocks_end() -> None:
    """2 steps of 1,000 tokens at the source; the link breaks in the second."""
    model = pairs(bandwidth=EVEN)
    scheduler = replace_scheduler(model, max_batched_tokens=1000)
    fault = TransferFailure(worker=1, at=0.15, seconds=1.0)
    (answer,) = run(replace(scheduler, faults=[fault]), [turn(0.0, text("a", 2000), 5)]).answers
    assert answer.transfer is not None
    assert (answer.transfer.failure, answer.transfer.tokens) == ("copy_failed", 1000)
    assert answer.is_complete


def replace_scheduler(model: FleetModel, *, max_batched_tokens: int) -> FleetModel:
    scheduler = changed(model.worker.scheduler, max_batched_tokens=max_batched_tokens)
    return replace(model, worker=replace(model.worker, scheduler=scheduler))


def test_a_prefill_worker_that_dies_is_done_without() -> None:
    model = replace(pairs(roles=(1, 2, 0)), faults=[Crash(worker=0, at=3.0, seconds=4.0)])
    found = run(model, mixed_turns(6))
    assert errors(found) == {None}
    reasons = {answer.reason for answer in found.answers}
    assert reasons >= {"split"}
    alone = [a for a in found.answers if a.prefill_worker_id is None and a.reason != "short-prompt"]
    assert alone  # while it was away


def test_a_decode_worker_that_dies_loses_what_it_had_begun_to_answer() -> None:
    model = replace(pairs(roles=(1, 2, 0)), faults=[Crash(worker=1, at=3.0, seconds=4.0)])
    found = run(model, mixed_turns(7))
    assert errors(found) == {None, "worker_lost"}
    lost = [answer for answer in found.answers if answer.error]
    assert all(answer.first_token_at is not None for answer in lost)
    assert all(answer.worker_id == "worker-1" for answer in lost)


def test_messages_that_take_longer_delay_first_tokens_by_as_much() -> None:
    model = replace(pairs(), faults=[NetworkDelay(worker=1, at=0.0, seconds=100.0, delay=0.05)])
    quick = run(pairs(), [turn(0.0, text("a", 1000), 10)]).answers[0]
    slow = run(model, [turn(0.0, text("a", 1000), 10)]).answers[0]
    assert quick.finished_at is not None
    assert slow.finished_at is not None
    taken = slow.finished_at - slow.arrived_at
    # There and back, and the word of the first token between the workers; connecting is beside.
    assert taken - (quick.finished_at - quick.arrived_at) == pytest.approx(0.15, abs=0.06)


def test_a_delay_that_ends_does_not_let_later_tokens_overtake_earlier_ones() -> None:
    fault = NetworkDelay(worker=0, at=0.0, seconds=0.11, delay=5.0)
    model = replace(fleet(num_workers=1), faults=[fault])
    (answer,) = run(model, [turn(0.0, text("a", 1000), 2)]).answers
    assert answer.first_token_at is not None
    assert answer.finished_at is not None
    assert answer.first_token_at <= answer.finished_at
    assert answer.num_output_tokens == 2


def test_a_late_report_of_load_sends_requests_to_the_wrong_worker() -> None:
    """Two long answers at one worker; long after, it still says that it has them."""
    turns = [turn(0.0, text(f"long {n}", 1000), 100) for n in range(8)]
    turns += [turn(10.0 + 0.01 * n, text(f"short {n}", 100), 2) for n in range(6)]
    stale = StaleLoad(worker=0, at=1.0, seconds=60.0)
    model = fleet(num_workers=2)

    def placed(faults: Sequence[Fault]) -> list[str | None]:
        found = simulate(
            replace(model, network=Network(load_reports=True), faults=faults),
            turns,
            policy=least_loaded,
            name="stale",
        )
        return [answer.worker_id for answer in found.answers[8:]]

    assert set(placed(())) == {"worker-0", "worker-1"}
    assert set(placed([stale])) == {"worker-1"}
    assert set(placed([replace(stale, late=60.0)])) >= {"worker-0"}  # nothing was there then


FAULTS = st.one_of(
    st.builds(
        Crash,
        worker=st.integers(0, 3),
        at=st.floats(0.0, 6.0),
        seconds=st.floats(0.5, 8.0),
    ),
    st.builds(
        TransferFailure,
        worker=st.integers(0, 3),
        at=st.floats(0.0, 6.0),
        seconds=st.floats(0.1, 8.0),
    ),
    st.builds(
        NetworkDelay,
        worker=st.integers(0, 3),
        at=st.floats(0.0, 6.0),
        seconds=st.floats(0.1, 8.0),
        delay=st.floats(0.001, 3.0),
    ),
    st.builds(
        Slowdown,
        worker=st.integers(0, 3),
        at=st.floats(0.0, 6.0),
        seconds=st.floats(0.1, 8.0),
        factor=st.floats(1.5, 5.0),
    ),
    st.builds(
        StaleLoad,
        worker=st.integers(0, 3),
        at=st.floats(0.0, 6.0),
        seconds=st.floats(0.1, 8.0),
        late=st.none() | st.floats(0.1, 8.0),
    ),
)


def who_dies(fault: Fault) -> object:
    """A worker can die only once at a time; whatever else may come together."""
    return fault.worker if isinstance(fault, Crash) else id(fault)


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    faults=st.lists(FAULTS, max_size=5, unique_by=who_dies),
    seed=st.integers(0, 1000),
    roles=st.sampled_from([(2, 2, 0), (1, 2, 1), (2, 1, 1)]),
    handover=st.sampled_from(["auto", "vllm"]),
    kv_tokens=st.sampled_from([6_000, 1_000_000]),
)
def test_whatever_fails_every_client_is_answered_and_every_block_let_go_of(
    faults: list[Fault], seed: int, roles: tuple[int, int, int], handover: str, kv_tokens: int
) -> None:
    rng = random.Random(seed)
    shape = pairs(
        roles=roles, bandwidth=EVEN, handover=handover, kv_tokens=kv_tokens, lease_seconds=3.0
    )
    model = replace(
        shape,
        faults=faults,
        fabric=replace(shape.fabric, failure_share=rng.choice([0.0, 0.2])),
    )
    found = run(model, mixed_turns(seed, num=60), seed=seed)
    again = run(model, mixed_turns(seed, num=60), seed=seed)
    assert report([again]).to_json() == report([found]).to_json()
