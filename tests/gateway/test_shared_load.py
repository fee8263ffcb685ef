"""What several processes have in flight, in memory that they share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.gateway.restarts import MAX_RESTART_SECONDS, RestartPause
from expediter.gateway.shared_load import MAX_WORKERS, LoadTable, SharedWork, create_memory
from expediter.load import WorkerId
from expediter.routing.outstanding import OutstandingWork, Work

NAMES = [WorkerId(name) for name in ("a", "b", "c")]


class Clock:
    """Steps on whenever it is read, so that nothing read is too old."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def fd() -> Iterator[int]:
    fd = create_memory(3)
    yield fd
    os.close(fd)


def works(fd: int, num: int = 3) -> list[SharedWork]:
    """Each over a mapping of its own, as in processes of their own."""
    return [SharedWork(LoadTable(fd, 3), row, clock=Clock()) for row in range(num)]


def begin(work: SharedWork | OutstandingWork, worker_id: WorkerId, tokens: int = 100) -> Work:
    return work.start(worker_id, prefill_tokens=tokens, max_output_tokens=None)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(NAMES), st.integers(0, 10_000), st.booleans()),
        max_size=40,
    )
)
def test_every_process_reads_the_sum_of_all(steps: list[tuple[int, WorkerId, int, bool]]) -> None:
    """The oracle is one process that does everything."""
    fd = create_memory(3)
    try:
        processes, oracle = works(fd), OutstandingWork()
        running: list[tuple[SharedWork, Work, Work]] = []
        for number, worker_id, tokens, ends in steps:
            running.append(
                (
                    processes[number],
                    begin(processes[number], worker_id, tokens),
                    begin(oracle, worker_id, tokens),
                )
            )
            if ends:
                process, work, same = running.pop(0)
                process.finish(work)
                oracle.finish(same)
            for process in processes:
                for name in NAMES:
                    assert process.num_requests(name) == oracle.num_requests(name)
                    assert process.tokens(name) == pytest.approx(oracle.tokens(name))
    finally:
        os.close(fd)


def test_a_row_that_is_wiped_counts_no_more(fd: int) -> None:
    one, two, _ = works(fd)
    begin(one, NAMES[0])
    assert (two.num_requests(NAMES[0]), two.num_elsewhere(NAMES[0])) == (1, 1)
    LoadTable(fd, 3).wipe(0)
    assert (two.num_requests(NAMES[0]), two.tokens(NAMES[0])) == (0, 0)


def test_workers_that_come_and_go_take_no_more_room_than_there_is(fd: int) -> None:
    one, two, _ = works(fd)
    for number in range(2 * MAX_WORKERS):
        name = WorkerId(f"pod-{number}")
        work = begin(one, name)
        if number % 997 == 0:
            assert two.num_requests(name) == 1
        one.finish(work)
    busy = begin(one, NAMES[0])
    assert two.num_requests(NAMES[0]) == 1
    one.finish(busy)
    assert two.num_requests(NAMES[0]) == 0
    assert len(two._others._place_of) <= MAX_WORKERS


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    pause = RestartPause()
    assert [pause.after(1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert pause.after(MAX_RESTART_SECONDS) == 0.5
    assert pause.after(0.0) == 1
