"""What every workload promises, and workloads to check it on."""

import random
from collections.abc import Callable, Iterable, Iterator

from expediter.workload.arrivals import poisson
from expediter.workload.conversations import AGENTS, CHAT
from expediter.workload.demo import Demo
from expediter.workload.hot_prefix import HotPrefix
from expediter.workload.preble import TABLE, preble
from expediter.workload.robots import Robots
from expediter.workload.shared_prefix import DOCUMENTS, FEW_SHOT, PARALLEL_SAMPLES
from expediter.workload.turn import Turn

Make = Callable[[random.Random], Iterator[Turn]]


def _with_arrivals(settings: object, *, rate: float = 2.0) -> Make:
    def make(rng: random.Random) -> Iterator[Turn]:
        starts = poisson(rate).times(random.Random(rng.random()))
        turns: Iterator[Turn] = settings.turns(starts, rng=rng)  # type: ignore[attr-defined]
        return turns

    return make


GENERATORS: dict[str, Make] = {
    "chat": _with_arrivals(CHAT),
    "agents": _with_arrivals(AGENTS),
    "documents": _with_arrivals(DOCUMENTS),
    "few-shot": _with_arrivals(FEW_SHOT),
    "samples": _with_arrivals(PARALLEL_SAMPLES),
    "robots": _with_arrivals(Robots(num_frames=7)),
    "hot-prefix": lambda rng: HotPrefix().turns(rng=rng),
    "demo": _with_arrivals(Demo(num_conversations=9)),
    **{name: _with_arrivals(preble(name)) for name in TABLE},
}


def keep_promises(turns: Iterable[Turn]) -> int:
    """Check them all; how many turns there were."""
    latest: Turn | None = None
    num_turns = 0
    for turn in turns:
        assert turn.num_prompt_tokens > 0
        assert turn.num_output_tokens > 0
        assert turn.arrival_time >= (latest.arrival_time if latest else 0.0)
        if turn.think_time is not None:
            assert latest is not None
            assert turn.session is not None
            assert turn.session == latest.session
            assert turn.arrival_time == latest.arrival_time
            assert turn.prompt.segments[: len(latest.transcript.segments)] == (
                latest.transcript.segments
            )
        latest = turn
        num_turns += 1
    return num_turns


def told(turn: Turn) -> tuple[object, ...]:
    """All there is to a turn, to compare by value."""
    return (
        turn.arrival_time,
        turn.transcript.segments,
        turn.label,
        turn.session,
        turn.tenant,
        turn.think_time,
        turn.priority,
    )
