"""Turns are sent when they are due, on a clock that jumps."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from expediter.simulation.loop import run_virtual
from expediter.workload.conversations import CHAT
from expediter.workload.distributions import Constant
from expediter.workload.replay import Ended, Replay, replay
from expediter.workload.robots import Robots
from expediter.workload.streams import merged
from expediter.workload.turn import Turn

ANSWER_SECONDS = 10.0
RNG = random.Random(1)


async def times_of(turns: list[Turn]) -> list[tuple[float, Turn]]:
    """When each turn was sent, in order, if every answer takes 10 s."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    sent: list[tuple[float, Turn]] = []

    async def send(turn: Turn) -> None:
        sent.append((loop.time() - started, turn))
        await asyncio.sleep(ANSWER_SECONDS)

    await replay(turns, send)
    assert loop.time() - started == pytest.approx(sent[-1][0] + ANSWER_SECONDS)
    return sent


def test_a_conversation_waits_for_answers_and_thinks_and_robots_do_not_wait() -> None:
    chat = replace(CHAT, num_turns=Constant(3), pause=Constant(5))
    robots = Robots(num_frames=4, frames_per_second=0.5)
    turns = list(
        merged(
            chat.turns([1.0, 2.5], rng=random.Random(1)),
            robots.turns([1.5], rng=random.Random(1)),
        )
    )
    sent = run_virtual(times_of(turns))
    assert len(sent) == 10
    by_session: dict[str | None, list[float]] = {}
    for time, turn in sent:
        by_session.setdefault(turn.session, []).append(time)
    assert by_session == {
        "chat/0": pytest.approx([1.0, 16.0, 31.0]),
        "chat/1": pytest.approx([2.5, 17.5, 32.5]),
        "robots/0": pytest.approx([1.5, 3.5, 5.5, 7.5]),
    }


def test_turns_without_tasks_are_those_with_tasks() -> None:
    chat = replace(CHAT, num_turns=Constant(4), pause=Constant(3))
    turns = list(chat.turns([0.0, 1.0, 1.0, 20.0], rng=random.Random(2)))

    async def started() -> list[tuple[float, Turn]]:
        loop = asyncio.get_running_loop()
        sent: list[tuple[float, Turn]] = []

        def start(turn: Turn, ended: Ended) -> None:
            sent.append((loop.time(), turn))
            loop.call_later(ANSWER_SECONDS, ended, None)

        await Replay(turns, start).run()
        return sent

    assert run_virtual(started()) == run_virtual(times_of(turns))


def test_an_answer_that_is_there_at_once_is_thought_about_too() -> None:
    turns = list(replace(CHAT, num_turns=Constant(3), pause=Constant(5)).turns([1.0], rng=RNG))

    async def started() -> list[float]:
        times: list[float] = []

        def start(_: Turn, ended: Ended) -> None:
            times.append(asyncio.get_running_loop().time())
            ended(None)

        await Replay(turns, start).run()
        return times

    assert run_virtual(started()) == pytest.approx([1.0, 6.0, 11.0])


@pytest.mark.parametrize("fails", ["the first answer", "the second start", "the workload"])
def test_nothing_is_started_after_a_failure(fails: str) -> None:
    def turns() -> Iterator[Turn]:
        made = replace(CHAT, num_turns=Constant(1)).turns([0.0, 1.0, 2.0, 3.0], rng=RNG)
        for number, turn in enumerate(made):
            if fails == "the workload" and number == 2:
                raise ConnectionError(fails)
            yield turn

    async def main() -> int:
        loop = asyncio.get_running_loop()
        num_started = 0

        def start(_: Turn, ended: Ended) -> None:
            nonlocal num_started
            num_started += 1
            if fails == "the second start" and num_started == 2:
                raise ConnectionError(fails)
            error = ConnectionError(fails) if fails == "the first answer" else None
            loop.call_later(1.5, ended, error)

        with pytest.raises(ConnectionError, match=fails):
            await Replay(turns(), start).run()
        before = num_started
        await asyncio.sleep(100.0)
        return num_started - before

    assert run_virtual(main()) == 0


def test_a_failing_send_ends_the_replay() -> None:
    async def send(turn: Turn) -> None:
        raise ConnectionError(turn.session)

    turns = replace(CHAT, num_turns=Constant(3)).turns([0.0], rng=random.Random(1))
    with pytest.raises(ExceptionGroup) as error:
        run_virtual(replay(turns, send))
    assert error.value.subgroup(ConnectionError) is not None
