"""The items of a JSON array that is too large to hold, and of JSON lines alike."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from expediter.workload.rows import Place

CHUNK_SIZE = 1 << 20  # characters
_LONGEST_ESCAPE = 16  # more than an escape, a literal or a number's sign and point can be cut by


def json_items(path: Path, *, chunk_size: int = CHUNK_SIZE) -> Iterator[tuple[Place, Any]]:
    """Each item with the line it begins in; one chunk of the file is held at a time."""
    with path.open(encoding="utf-8-sig") as file:
        text = _Buffer(path, file, chunk_size=chunk_size)
        is_array = text.peek() == "["
        if is_array:
            text.skip()
        while (mark := text.peek()) and not (is_array and mark == "]"):
            yield text.item()
            if is_array and text.peek() == ",":
                text.skip()
        if is_array and not mark:
            raise text.place.error("the array does not end")


class _Buffer:
    """The part of a file that is being parsed."""

    def __init__(self, path: Path, file: TextIO, *, chunk_size: int) -> None:
        self.place = Place(path, 1)
        self._chunk_size = chunk_size
        self._file = file
        self._text = ""
        self._at = 0
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            while self._at < len(self._text):
                mark = self._text[self._at]
                if not mark.isspace():
                    return mark
                self.skip()
            if not self._read():
                return ""

    def skip(self) -> None:
        """Go past one character."""
        self._advance(self._at + 1)

    def item(self) -> tuple[Place, Any]:
        """The next value and where it begins."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not (self._may_be_cut(error) and self._read()):
                    line = self.place.line + self._text.count("\n", self._at, error.pos)
                    raise Place(self.place.path, line).error(error.msg) from error
            else:
                place = self.place
                self._advance(end)
                return place, value

    def _advance(self, end: int) -> None:
        lines = self._text.count("\n", self._at, end)
        if lines:
            self.place = Place(self.place.path, self.place.line + lines)
        self._at = end

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Whether more of the file could mend it."""
        near_end = error.pos >= len(self._text) - _LONGEST_ESCAPE
        return near_end or error.msg.startswith("Unterminated string")

    def _read(self) -> bool:
        """Drop what is parsed and read at least as much as is left; False at the end."""
        rest = self._text[self._at :]
        with self.place.blamed():  # for bytes that are no UTF-8
            more = self._file.read(max(self._chunk_size, len(rest)))
        self._text = rest + more
        self._at = 0
        return bool(more)
