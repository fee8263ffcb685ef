"""Prefixes that a worker fetches from another before it computes a prompt (Mooncake)."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fleets import fleet, text, turn
from test_simulated_faults import settled
from test_simulated_pairs import EVEN

from expediter.load import WorkerId
from expediter.routing.view import Choice, ClusterView, RoutedRequest
from expediter.simulation.experiment import Run, simulate
from expediter.simulation.fabric import Fabric
from expediter.simulation.fleet import Fault, TransferFailure
from expediter.simulation.links import Interconnect
from expediter.simulation.prefix_copy import Fetch
from expediter.workload.turn import Turn

A, B = WorkerId("worker-0"), WorkerId("worker-1")


class FirstHereThenThere:
    """The first request to A, all others to B, which is to fetch so many tokens from A."""

    uses_prefixes = True
    uses_loads = False

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._num_placed = 0
        self._fetches: dict[str, Fetch] = {}

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        del view
        self._num_placed += 1
        if self._num_placed == 1:
            return Choice(worker_id=A, matched_tokens=0, reason="first")
        self._fetches[request.request_id] = Fetch(A, self._num_tokens)
        return Choice(worker_id=B, matched_tokens=self._num_tokens, reason="fetched")

    def take_fetch(self, request_id: str) -> Fetch | None:
        return self._fetches.pop(request_id, None)


def run(
    turns: Sequence[Turn],
    *,
    num_tokens: int = 1000,
    kv_tokens: int = 1_000_000,
    faults: Sequence[Fault] = (),
) -> Run:
    """At 10 MB/s and 1,000 bytes a token, a token moves in the time that it takes to compute."""
    links = Interconnect(num_gpus=1, num_nics=1, nic_bandwidth=10 * EVEN)
    model = replace(
        fleet(kv_tokens=kv_tokens),
        fabric=Fabric(interconnect=links, kv_bytes_per_token=1000),
        faults=faults,
    )

    def policy(rng: random.Random) -> FirstHereThenThere:
        del rng
        return FirstHereThenThere(num_tokens)

    with settled():
        return simulate(model, turns, policy=policy, name="fetches")


FIRST = text("a", 1000)
TURNS = [turn(0.0, FIRST, 10), turn(5.0, text("b", 500, after=FIRST), 10)]


def test_what_is_fetched_is_not_computed_and_stays_cached_at_both() -> None:
    turns = [*TURNS, turn(10.0, text("c", 500, after=FIRST), 10)]
    found = run(turns)
    assert [answer.cached_tokens for answer in found.answers] == [0, 1000, 1000]
    assert [worker.transferred_bytes for worker in found.workers] == [0, 1_000_000]  # once
    second = found.answers[1]
    assert second.first_token_at is not None
    # 10 ms for the copy, 50 for the rest of the prompt.
    assert second.first_token_at - second.arrived_at == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("num_tokens", "kv_tokens", "faults", "cached"),
    [
        (1200, 1_000_000, (), 1000),  # more than there is
        (1000, 1_000_000, (TransferFailure(worker=1, at=4.0, seconds=10.0),), 0),
        (1000, 1_000_000, (TransferFailure(worker=0, at=5.005, seconds=10.0),), 0),  # on its way
        (0, 1_000_000, (), 0),
    ],
)
def test_what_does_not_come_is_computed(
    num_tokens: int, kv_tokens: int, faults: Sequence[Fault], cached: int
) -> None:
    found = run(TURNS, num_tokens=num_tokens, kv_tokens=kv_tokens, faults=faults)
    assert all(answer.is_complete for answer in found.answers)
    assert found.answers[1].cached_tokens == cached
    assert found.workers[1].num_prompt_tokens == 1500 - cached


def test_without_room_nothing_is_fetched_and_nothing_is_lost() -> None:
    """B's 2,000 tokens are all in use by a prompt of 1,900 when the second wants 1,000 more."""
    turns = [
        turn(0.0, FIRST, 10),
        turn(4.0, text("full", 1900), 90),
        turn(5.0, text("b", 500, after=FIRST), 10),
    ]
    found = run(turns, kv_tokens=2000)
    assert all(answer.is_complete for answer in found.answers)
    assert found.answers[2].cached_tokens == 0
