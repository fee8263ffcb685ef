"""What can be done to any workload: each function takes turns and gives turns, one by one.

All keep the promises that a workload makes (see `Turn`).
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, merge
from itertools import islice, takewhile
from operator import attrgetter

from msgspec.structs import replace

from expediter.workload.transcript import Segment, Transcript, TranscriptTree
from expediter.workload.turn import Turn

_arrival_time = attrgetter("arrival_time")
_Waiting = list[tuple[float, int, Turn, Iterator[Turn]]]  # a heap of each stream's next turn


def first(num_turns: int, turns: Iterable[Turn]) -> Iterator[Turn]:
    """The first `num_turns` turns."""
    return islice(turns, num_turns)


def between(start: float, end: float, turns: Iterable[Turn]) -> Iterator[Turn]:
    """What arrives from `start` to before `end`, which is then time 0."""
    for turn in takewhile(lambda turn: turn.arrival_time < end, turns):
        if turn.arrival_time >= start:
            yield replace(turn, arrival_time=turn.arrival_time - start)


def faster(factor: float, turns: Iterable[Turn]) -> Iterator[Turn]:
    """The same arrivals in 1 / `factor` of the time. Pauses to think stay as they are."""
    for turn in turns:
        yield replace(turn, arrival_time=turn.arrival_time / factor)


def relabelled(
    turns: Iterable[Turn],
    *,
    label: str | None = None,
    tenant: str | None = None,
    priority: int | None = None,
) -> Iterator[Turn]:
    """The same with another class, tenant or priority; what is None stays."""
    given = {"label": label, "tenant": tenant, "priority": priority}
    changes = {name: value for name, value in given.items() if value is not None}
    return (replace(turn, **changes) for turn in turns)


def merged(*workloads: Iterable[Turn]) -> Iterator[Turn]:
    """All of them at once, in order of time. Equal names of texts and sessions become one."""
    return merge(*workloads, key=_arrival_time)


def thinned(share: float, turns: Iterable[Turn], *, rng: random.Random) -> Iterator[Turn]:
    """Each session, or each turn without one, is kept with the chance `share`."""
    seed = rng.getrandbits(64)
    for turn in turns:
        chance = random.Random(f"{seed} {turn.session}") if turn.session else rng
        if chance.random() < share:
            yield turn


def limited(rate: float, turns: Iterable[Turn]) -> Iterator[Turn]:
    """At most one arrival every 1 / `rate` seconds: what comes too soon waits for its moment.

    Later turns of a closed loop are no arrivals and are not counted.
    """
    earliest = 0.0
    time = 0.0
    for turn in turns:
        if turn.think_time is None:
            time = max(turn.arrival_time, earliest)
            earliest = time + 1 / rate
        yield replace(turn, arrival_time=time)


def looped(
    passes: Iterable[Iterable[Turn]], *, seconds: float, fresh: bool = False
) -> Iterator[Turn]:
    """One pass after another, each `seconds` after the one before; sessions do not go on.

    `fresh` gives every pass texts of its own, so that none hits what another left in a cache.
    """
    for number, turns in enumerate(passes):
        suffix = f"#{number}" if number else ""
        tree = TranscriptTree()
        for turn in turns:
            renamed = _renamed(turn, suffix, tree=tree) if fresh and suffix else turn.transcript
            yield replace(
                turn,
                arrival_time=number * seconds + turn.arrival_time,
                session=None if turn.session is None else turn.session + suffix,
                transcript=renamed,
            )


def open_loop(turns: Iterable[Turn], *, seconds: Callable[[Turn], float]) -> Iterator[Turn]:
    """Fixed times for closed loops, as if each answer took `seconds`; in order of time."""
    return overlapping(
        (loop[0].arrival_time, _timed(loop, seconds=seconds)) for loop in _loops(turns)
    )


def overlapping(streams: Iterable[tuple[float, Iterable[Turn]]]) -> Iterator[Turn]:
    """Streams that start one after another, each in order of time, merged by time.

    Each comes with the time before which it has no turn; these times never fall. A stream is
    asked for only when its time has come.
    """
    waiting: _Waiting = []
    for number, (start, stream) in enumerate(streams):
        yield from _due(waiting, before=start)
        _push(waiting, number, iter(stream))
    yield from _due(waiting, before=math.inf)


def _due(waiting: _Waiting, *, before: float) -> Iterator[Turn]:
    while waiting and waiting[0][0] < before:
        _, number, turn, stream = heappop(waiting)
        yield turn
        _push(waiting, number, stream)


def _push(waiting: _Waiting, number: int, stream: Iterator[Turn]) -> None:
    turn = next(stream, None)
    if turn is not None:
        heappush(waiting, (turn.arrival_time, number, turn, stream))


def _loops(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Each first turn with those that follow it."""
    loop: list[Turn] = []
    for turn in turns:
        if turn.think_time is None and loop:
            yield loop
            loop = []
        loop.append(turn)
    if loop:
        yield loop


def _timed(loop: list[Turn], *, seconds: Callable[[Turn], float]) -> Iterator[Turn]:
    time = loop[0].arrival_time
    for turn in loop:
        time += turn.think_time or 0.0
        yield replace(turn, arrival_time=time, think_time=None)
        time += seconds(turn)


def _renamed(turn: Turn, suffix: str, *, tree: TranscriptTree) -> Transcript:
    """The same lengths under other names: the first one's, on which all others hang."""
    head, *tail = turn.transcript.segments
    return tree.grow([Segment(head.name + suffix, head.num_tokens, head.role, head.text), *tail])
