"""Turns are sent when they are due, on a clock that jumps."""

import asyncio
import random

import pytest
from msgspec.structs import replace

from expediter.simulation.loop import run_virtual
from expediter.workload.conversations import CHAT
from expediter.workload.distributions import Constant
from expediter.workload.replay import replay
from expediter.workload.robots import Robots
from expediter.workload.streams import merged
from expediter.workload.turn import Turn

ANSWER_SECONDS = 10.0


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


def test_a_failing_send_ends_the_replay() -> None:
    async def send(turn: Turn) -> None:
        raise ConnectionError(turn.session)

    turns = replace(CHAT, num_turns=Constant(3)).turns([0.0], rng=random.Random(1))
    with pytest.raises(ExceptionGroup) as error:
        run_virtual(replay(turns, send))
    assert error.value.subgroup(ConnectionError) is not None
