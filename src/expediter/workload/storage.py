"""Workloads as files: JSON lines, one turn each, that give back what was written."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from expediter.config import NotNegative, Positive
from expediter.workload.rows import json_lines
from expediter.workload.transcript import Role, Segment, TranscriptTree
from expediter.workload.turn import Turn


class _SegmentRow(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    tokens: Positive
    role: Role = "user"
    text: str | None = None


class _Row(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    at: NotNegative
    prompt: Annotated[list[_SegmentRow], msgspec.Meta(min_length=1)]
    answer: _SegmentRow
    label: str = "all"
    session: str | None = None
    tenant: str | None = None
    think_time: NotNegative | None = None
    priority: int = 0


def write_workload(path: Path, turns: Iterable[Turn]) -> int:
    """Write all turns; how many there were."""
    encoder = msgspec.json.Encoder()
    num_turns = 0
    with path.open("wb") as file:
        for turn in turns:
            file.write(encoder.encode(_row(turn)) + b"\n")
            num_turns += 1
    return num_turns


def read_workload(path: Path) -> Iterator[Turn]:
    """The turns that `write_workload` wrote, one by one."""
    tree = TranscriptTree()
    latest: Turn | None = None
    for place, row in json_lines(path, _Row):
        turn = _turn(row, tree=tree)
        with place.blamed():
            _check_order(turn, latest)
        yield turn
        latest = turn


def _row(turn: Turn) -> _Row:
    *prompt, answer = map(_segment_row, turn.transcript.segments)
    return _Row(
        at=turn.arrival_time,
        prompt=prompt,
        answer=answer,
        label=turn.label,
        session=turn.session,
        tenant=turn.tenant,
        think_time=turn.think_time,
        priority=turn.priority,
    )


def _segment_row(segment: Segment) -> _SegmentRow:
    return _SegmentRow(segment.name, segment.num_tokens, segment.role, segment.text)


def _segment(row: _SegmentRow) -> Segment:
    return Segment(row.name, row.tokens, row.role, row.text)


def _turn(row: _Row, *, tree: TranscriptTree) -> Turn:
    return Turn(
        arrival_time=row.at,
        transcript=tree.grow(map(_segment, [*row.prompt, row.answer])),
        label=row.label,
        session=row.session,
        tenant=row.tenant,
        think_time=row.think_time,
        priority=row.priority,
    )


def _check_order(turn: Turn, latest: Turn | None) -> None:
    """Raises ValueError where a workload would break its promises."""
    if latest is not None and turn.arrival_time < latest.arrival_time:
        raise ValueError("arrives before the row above it")
    if turn.think_time is None:
        return
    if latest is None or turn.session is None or turn.session != latest.session:
        raise ValueError("has a think_time but does not follow a turn of its session")
    if turn.arrival_time != latest.arrival_time:
        raise ValueError("has a think_time but not the time of the turn it follows")
