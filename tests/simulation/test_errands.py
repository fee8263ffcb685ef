"""A simulated worker's loop is an errand within a task."""

import asyncio

import pytest

from expediter.cluster.errand import Pause
from expediter.simulation.errands import as_errand
from expediter.simulation.loop import run_virtual


def test_it_goes_on_within_the_call_that_ends_its_pause() -> None:
    async def main() -> list[str]:
        pause, heard = Pause(), []

        async def work() -> None:
            await pause
            heard.append("went on")

        def tell() -> None:
            pause.end()
            heard.append("told")

        asyncio.get_running_loop().call_later(1.0, tell)
        await as_errand(work())
        return heard

    assert run_virtual(main()) == ["went on", "told"]


def test_what_it_raises_is_raised() -> None:
    async def work() -> None:
        await asyncio.sleep(1.0)
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        run_virtual(as_errand(work()))


@pytest.mark.parametrize("waits_for", ["a pause", "a future"])
def test_cancelled_it_ends_before_whoever_waits_goes_on(waits_for: str) -> None:
    async def main() -> list[str]:
        heard = []

        async def work() -> None:
            try:
                if waits_for == "a pause":
                    await Pause()
                await asyncio.sleep(1000.0)
            finally:
                heard.append("work")

        task = asyncio.create_task(as_errand(work()))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return [*heard, "waiter"]

    assert run_virtual(main()) == ["work", "waiter"]
