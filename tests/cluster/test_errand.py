"""An errand is a task without the turns of the loop: the same happens in both, only sooner."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.cluster.errand import Errand, Pause, in_task

Note = Callable[[str], None]
STEPS = ["pause", "turn", "future", "task", "forever", "long task", "error"]


class Answer(Pause):
    """Notes what becomes of it."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def abort(self) -> None:
        self._note("aborted")


async def waits(step: str, pauses: list[Answer], note: Note) -> None:
    """One step of a coroutine."""
    match step:
        case "pause":
            pauses.append(Answer(note))
            await pauses[-1]
        case "turn":
            await asyncio.sleep(0)
        case "future":
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_result, None)
            await future
        case "task":
            await in_task(within_a_second(note))
        case "forever":
            await asyncio.get_running_loop().create_future()
        case "long task":
            await in_task(asyncio.sleep(3600))
        case "error":
            raise ValueError(step)


async def within_a_second(note: Note) -> None:
    async with asyncio.timeout(1):
        await asyncio.sleep(0)
    note("in time")


async def story(steps: list[tuple[str, bool]], pauses: list[Answer], note: Note) -> None:
    """Steps, each of which may take a cancellation and go on."""
    try:
        for step, goes_on in steps:
            note(step)
            try:
                await waits(step, pauses, note)
            except asyncio.CancelledError:
                note("cancelled")
                if not goes_on:
                    raise
    finally:
        note("left")


def by_errand(coroutine: Coroutine[Any, None, None], note: Note) -> Callable[[], object]:
    def done(error: BaseException | None) -> None:
        note(f"done: {type(error).__name__}")

    errand = Errand(done)
    errand.take(coroutine)
    errand.go()
    return errand.cancel


def by_task(coroutine: Coroutine[Any, None, None], note: Note) -> Callable[[], object]:
    async def run() -> None:
        try:
            await coroutine
        except (ValueError, asyncio.CancelledError) as error:
            note(f"done: {type(error).__name__}")
        else:
            note("done: NoneType")

    return asyncio.get_running_loop().create_task(run()).cancel


def told(
    start: Callable[[Coroutine[Any, None, None], Note], Callable[[], object]],
    steps: list[tuple[str, bool]],
    cancels: set[int],
) -> list[str]:
    """What happens, where pauses end one by one, and it is cancelled instead of some of them.

    At last it is cancelled until it ends.
    """
    loop = asyncio.new_event_loop()
    notes: list[str] = []
    pauses: list[Answer] = []

    async def settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    try:
        cancel: list[Callable[[], object]] = []
        loop.call_soon(
            lambda: cancel.append(start(story(steps, pauses, notes.append), notes.append))
        )
        loop.run_until_complete(settle())
        for number in range(2 * len(steps) + 1):
            if "done" in notes[-1]:
                break
            is_cancelled = number in cancels or number > len(steps) or not pauses
            loop.call_soon(cancel[0] if is_cancelled else pauses[-1].end)
            loop.run_until_complete(settle())
    finally:
        loop.close()
    return notes


@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.booleans()),
        max_size=6,
    ),
    st.sets(st.integers(0, 6)),
)
def test_an_errand_does_what_a_task_does(steps: list[tuple[str, bool]], cancels: set[int]) -> None:
    assert told(by_errand, steps, cancels) == told(by_task, steps, cancels)


def run_outside_tasks(body: Callable[[], None]) -> None:
    """Call it from the loop, where nothing is a task."""
    loop = asyncio.new_event_loop()
    result = loop.create_future()

    def call() -> None:
        try:
            body()
        except AssertionError as error:
            result.set_exception(error)
        else:
            loop.call_later(0.01, result.set_result, None)

    try:
        loop.call_soon(call)
        loop.run_until_complete(result)
    finally:
        loop.close()


def test_it_goes_on_within_the_call_that_ends_its_pause() -> None:
    notes: list[str] = []

    def body() -> None:
        pauses: list[Answer] = []
        by_errand(story([("pause", False)], pauses, notes.append), notes.append)
        assert notes == ["pause"]
        pauses[0].end()
        assert notes == ["pause", "left", "done: NoneType"]

    run_outside_tasks(body)


def test_a_cancelled_pause_is_aborted_and_over_within_the_call() -> None:
    notes: list[str] = []

    def body() -> None:
        pauses: list[Answer] = []
        cancel = by_errand(story([("pause", False)], pauses, notes.append), notes.append)
        cancel()
        pauses[0].end()  # too late: nobody waits
        assert notes == ["pause", "aborted", "cancelled", "left", "done: CancelledError"]

    run_outside_tasks(body)


def test_one_that_is_cancelled_before_it_goes_never_begins() -> None:
    notes: list[str] = []

    def body() -> None:
        errand = Errand(lambda error: notes.append(f"done: {type(error).__name__}"))
        errand.take(story([("turn", False)], [], notes.append))
        errand.cancel()
        errand.go()
        assert notes == ["done: CancelledError"]

    run_outside_tasks(body)


def test_a_result_that_comes_as_its_waiter_leaves_is_handed_back() -> None:
    handed_back: list[int] = []
    notes: list[str] = []
    cancel: list[Callable[[], object]] = []

    async def work() -> int:
        asyncio.get_running_loop().call_soon(cancel[0])  # before its waiter knows of the result
        return 7

    async def wait() -> None:
        await in_task(work(), unwanted=handed_back.append)

    run_outside_tasks(lambda: cancel.append(by_errand(wait(), notes.append)))
    assert (handed_back, notes) == ([7], ["done: CancelledError"])


async def test_within_a_task_nothing_is_started_for_it() -> None:
    task = asyncio.current_task()

    async def work() -> bool:
        return asyncio.current_task() is task

    assert await in_task(work())
    with pytest.raises(ValueError, match="no"):
        await in_task(failing())


async def failing() -> None:
    raise ValueError("no")
