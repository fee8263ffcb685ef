"""Rows of a file, read one at a time, each with the place to name when it is wrong."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from expediter.errors import WorkloadError

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something stands; lines count from 1."""

    path: Path
    line: int

    def error(self, problem: object) -> WorkloadError:
        """The error to raise about what stands here."""
        return WorkloadError(f"{self.path}:{self.line}: {problem}")

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What is wrong with a value in here is wrong with this place."""
        try:
            yield
        except (ValueError, msgspec.MsgspecError) as error:
            raise self.error(error) from error


def json_lines(path: Path, row: type[Row]) -> Iterator[tuple[Place, Row]]:
    """Each line as a `row`; blank lines are skipped."""
    decoder = msgspec.json.Decoder(row)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            place = Place(path, number)
            with place.blamed():
                found = decoder.decode(line)
            yield place, found


def csv_rows(path: Path, *, columns: Iterable[str]) -> Iterator[tuple[Place, Mapping[str, str]]]:
    """Each row by the header's names, all of `columns` among them."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        try:
            names = rows.fieldnames or ()
            missing = set(columns) - set(names)
            if missing:
                raise Place(path, 1).error(f"no column {', '.join(sorted(missing))}")
            for row in rows:
                place = Place(path, rows.line_num)
                if None in row or None in row.values():
                    raise place.error(f"not {len(names)} columns")
                yield place, row
        except csv.Error as error:
            raise Place(path, rows.line_num).error(error) from error


def count_in(row: Mapping[str, str], column: str, *, at_least: int = 0) -> int:
    """The whole number in a column; ValueError if it is none, or less than `at_least`."""
    value = float(row[column])
    if not value.is_integer() or value < at_least:
        raise ValueError(f"{column} is {row[column]}, not a whole number from {at_least}")
    return int(value)


class InOrder:
    """Arrival times from the first row on, which must not fall."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0

    def seconds(self, time: float) -> float:
        """How long after the first; ValueError if before the last one."""
        if self._first is None:
            self._first = time
        since = time - self._first
        if not since >= self._last:
            raise ValueError(f"arrives {self._last - since:g} s before the row above it")
        self._last = since
        return since
