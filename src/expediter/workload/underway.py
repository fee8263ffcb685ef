"""A workload of sessions as it is long after its beginning: a few begin, most go on."""

from collections.abc import Iterable, Iterator
from itertools import dropwhile, islice, pairwise

from msgspec.structs import replace

from expediter.workload.streams import open_loop
from expediter.workload.turn import Turn


def underway(
    turns: Iterable[Turn], *, since: float, num_turns: int, seconds_per_token: float
) -> Iterator[Turn]:
    """The `num_turns` turns that come first from `since` on, which is then time 0.

    Which ones those are is reckoned as if every token of an answer took so long; when they are
    sent, they wait for the real answers and think as ever. A session that had begun before goes
    on with its next turn, whose prompt holds the history until then.
    """

    def seconds(turn: Turn) -> float:
        return turn.num_output_tokens * seconds_per_token

    timed = dropwhile(lambda turn: turn.arrival_time < since, open_loop(turns, seconds=seconds))
    sessions: dict[str | None, list[Turn]] = {}
    for turn in islice(timed, num_turns):
        sessions.setdefault(turn.session, []).append(turn)
    for session in sessions.values():
        start = session[0].arrival_time - since
        yield replace(session[0], arrival_time=start)
        for before, turn in pairwise(session):
            pause = turn.arrival_time - before.arrival_time - seconds(before)
            yield replace(turn, arrival_time=start, think_time=max(0.0, pause))
