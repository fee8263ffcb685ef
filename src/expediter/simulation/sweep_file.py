"""The rows of a sweep on disk, so that one which was stopped goes on where it was.

JSON lines: the first says which experiment it is, each other is a cell. They are appended as they
come and put in order in the end, so a finished file is the same whoever computed it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from expediter.errors import ConfigError

Result = TypeVar("Result", bound=msgspec.Struct)


class _Head(msgspec.Struct, frozen=True):
    base: dict[str, Any]


class SweepFile(Generic[Result]):
    """See the module; `base` is all that does not vary."""

    def __init__(self, path: Path, *, base: dict[str, Any], kind: type[Result]) -> None:
        self._path = path
        self._head = _Head(_plain(base))
        self._rows = msgspec.json.Decoder(kind)

    def read(self) -> list[Result]:
        """The cells that are there; makes the file if it is not.

        A last line without an end was being written when the sweep was stopped: it is cut off.
        """
        whole, torn = self._lines()
        if not whole:
            self.rewrite([])
            return []
        try:
            head = msgspec.json.decode(whole[0], type=_Head)
            self._compare(head)
            rows = [self._rows.decode(line) for line in whole[1:]]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path}: not a sweep's file: {error}") from None
        if torn:
            self.rewrite(rows)
        return rows

    def append(self, result: Result) -> None:
        """One more cell."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")

    def rewrite(self, results: Sequence[Result]) -> None:
        """All cells anew; a reader sees the old file or the new one."""
        lines = [msgspec.json.encode(each) + b"\n" for each in [self._head, *results]]
        beside = self._path.with_name(self._path.name + ".new")
        try:
            beside.write_bytes(b"".join(lines))
            beside.replace(self._path)
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror or error}") from None

    def _lines(self) -> tuple[list[bytes], bytes]:
        try:
            *whole, torn = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return [], b""
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror or error}") from None
        return whole, torn

    def _compare(self, head: _Head) -> None:
        there, here = head.base, self._head.base
        for name in [*here, *there]:
            if there.get(name, _ABSENT) != here.get(name, _ABSENT):
                raise ConfigError(
                    f"{self._path}: holds another experiment: {name} is "
                    f"{there.get(name, _ABSENT)} there and {here.get(name, _ABSENT)} here; "
                    "remove it or name another file"
                )


_ABSENT = "varied"


def _plain(base: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(base))
    return plain
