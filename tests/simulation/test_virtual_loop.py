"""Time that passes only by waiting."""

import asyncio
import contextvars
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.errors import SimulationStalled
from expediter.simulation.loop import VirtualTimeLoop, run_virtual


async def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_long_sleep_takes_its_time_on_the_virtual_clock_only() -> None:
    async def main() -> float:
        await asyncio.sleep(1e6)
        return await now()

    assert run_virtual(main()) == pytest.approx(1e6)


def test_sleepers_wake_in_order_of_their_times_and_equals_in_order_of_asking() -> None:
    woken: list[tuple[float, int]] = []

    async def sleep(seconds: float, number: int) -> None:
        await asyncio.sleep(seconds)
        woken.append((await now(), number))

    async def main() -> None:
        await asyncio.gather(*(sleep(s, i) for i, s in enumerate([2.0, 1.0, 2.0, 1.0, 0.5])))

    run_virtual(main())
    assert woken == [(0.5, 4), (1.0, 1), (1.0, 3), (2.0, 0), (2.0, 2)]


@given(st.lists(st.integers(0, 5), max_size=40))
def test_timers_of_one_instant_run_first_come_first_served(delays: list[int]) -> None:
    called: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for index, delay in enumerate(delays):
            loop.call_at(float(delay), called.append, index)
        await asyncio.sleep(6)

    run_virtual(main())
    assert called == sorted(range(len(delays)), key=lambda index: (delays[index], index))


def test_a_timeout_ends_a_wait_when_its_time_has_come() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.sleep(100)
        return await now()

    assert run_virtual(main()) == pytest.approx(3)


def test_a_task_that_fails_takes_its_group_along() -> None:
    ended: list[float] = []

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def wait() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(await now())

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(wait())

    with pytest.raises(ExceptionGroup):
        run_virtual(main())
    assert ended == [1]


def test_a_wait_for_nothing_names_the_tasks_that_wait() -> None:
    async def lost() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(5)
        await asyncio.create_task(lost(), name="the lost one")

    with pytest.raises(SimulationStalled, match=r"at 5 s .* 2 tasks .*the lost one \(.*lost\)"):
        run_virtual(main())


def test_a_task_that_never_lets_time_pass_is_a_runaway() -> None:
    async def main() -> None:
        await asyncio.sleep(2)
        while True:  # noqa: ASYNC110 - that is the mistake
            await asyncio.sleep(0)

    loop = VirtualTimeLoop(max_calls=50)
    with pytest.raises(SimulationStalled, match="time stands still at 2 s"):
        loop.run_until_complete(main())
    with asyncio.Runner(loop_factory=lambda: loop):
        pass  # cancels what is left, and closes


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.sleep, 0)

    with pytest.raises(RuntimeError, match="thread"):
        run_virtual(main())


def test_a_task_keeps_what_it_set_in_its_context_and_others_do_not_see_it() -> None:
    name = contextvars.ContextVar("name", default="nobody")
    seen: list[str] = []

    async def work(own: str) -> None:
        name.set(own)
        await asyncio.sleep(1)
        await asyncio.sleep(0)
        seen.append(name.get())

    async def main() -> None:
        await asyncio.gather(work("a"), work("b"))
        asyncio.get_running_loop().call_later(1, lambda: seen.append(name.get()))
        await asyncio.sleep(2)

    run_virtual(main())
    assert seen == ["a", "b", "nobody"]


def test_calls_can_be_cancelled_and_one_that_fails_is_reported_and_stops_nobody() -> None:
    called: list[str] = []
    reported: list[object] = []

    def fail() -> None:
        raise ValueError("here")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, report: reported.append(report["exception"]))
        timer = loop.call_at(3.0, called.append, "late")
        assert (timer.when(), timer.cancelled()) == (3.0, False)
        timer.cancel()
        assert timer.cancelled()
        loop.call_soon(called.append, "dropped").cancel()
        loop.call_soon(fail)
        loop.call_soon_threadsafe(called.append, "soon")
        await asyncio.sleep(5)

    run_virtual(main())
    assert called == ["soon"]
    assert [str(error) for error in reported] == ["here"]
