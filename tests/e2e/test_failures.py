"""Processes that die: what the clients see, what the gateway does, what is left."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_fleet import Fleet, eventually_gone, kill, running_fleet

LONG = {"max_tokens": 1500, "ignore_eos": True}


def eventually(claim: Callable[[], bool], *, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def worker_of_new_request(fleet: Fleet, number: int) -> str:
    with fleet.stream(f"Number {number} is", max_tokens=1) as stream:
        list(stream.events())
        return stream.worker


def test_a_worker_killed_while_it_streams_costs_its_client_an_error_and_nobody_else_anything(
    fleet: Fleet,
) -> None:
    with (
        fleet.stream("Once upon a time", **LONG) as lost,
        fleet.stream("The history of rivers", max_tokens=150, ignore_eos=True) as kept,
    ):
        assert lost.worker != kept.worker
        events, others = lost.events(), kept.events()
        next(events), next(others)
        dead = fleet.pids()[lost.worker]
        kill(dead)
        *_, last = list(events)
        assert last["error"]["type"] == "worker_lost"
        assert "closed the connection" in last["error"]["message"]
        assert lost.worker not in {worker_of_new_request(fleet, number) for number in range(4)}
        *_, last = list(others)
        assert last["choices"][0]["finish_reason"] == "length"
    eventually(lambda: fleet.pids().get(lost.worker) not in {None, dead})
    # The new process is taken back into service.
    numbers = iter(range(100, 10_000))
    eventually(lambda: worker_of_new_request(fleet, next(numbers)) == lost.worker)
    assert "was killed by SIGKILL; starting it again" in fleet.log.read_text("utf-8")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_the_supervisor_ends_so_does_every_process_of_the_fleet(
    number: signal.Signals, tmp_path: Path
) -> None:
    with running_fleet(tmp_path, num_workers=1) as fleet, fleet.stream("Hello", **LONG) as stream:
        next(stream.events())
        processes = fleet.everything()
        assert len(processes) == 3
        status = fleet.stop(number)
    assert status == (0 if number is signal.SIGTERM else -number)
    assert eventually_gone(processes, seconds=30.0) == []
