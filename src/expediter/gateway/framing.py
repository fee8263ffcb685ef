"""Where a response's body ends, told from its bytes as they pass.

A body is handed on as it came, framing included; for a peer that cannot take chunks it is
unwrapped. Either way nothing is copied that arrives whole.
"""

import re
from typing import Protocol

MAX_LINE_BYTES = 16 * 1024
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_SIZES = {b"%x" % size: size for size in range(1, 4096)}
"""As most chunks of a stream begin: found faster than read."""


class BadFraming(ValueError):
    """The bytes are not a body framed as its head said."""


class Body(Protocol):
    """Follows one body. `has_excess` is true if more bytes came than belong to it.

    `is_empty` is true as long as there is nothing in it.
    """

    is_complete: bool
    has_excess: bool
    is_empty: bool

    @property
    def is_between_chunks(self) -> bool:
        """Whether a chunk may follow what was handed on."""
        ...

    def feed(self, data: bytes) -> bytes:
        """The bytes to hand on; raises BadFraming."""
        ...


class LengthBody:
    """As many bytes as Content-Length says."""

    __slots__ = ("_remaining", "has_excess", "is_complete", "is_empty")
    is_between_chunks = False

    def __init__(self, length: int) -> None:
        self._remaining = length
        self.is_complete = self.is_empty = length == 0
        self.has_excess = False

    def feed(self, data: bytes) -> bytes:
        """At most what is left of the length."""
        num_left = self._remaining - len(data)
        if num_left > 0:
            self._remaining = num_left
            return data
        self.is_complete = True
        if num_left < 0:
            self.has_excess = True
            data = data[: self._remaining]
        self._remaining = 0
        return data


class UntilCloseBody:
    """Everything, until the connection ends."""

    __slots__ = ("is_empty",)
    is_complete = False
    has_excess = False
    is_between_chunks = True

    def __init__(self) -> None:
        self.is_empty = True

    def feed(self, data: bytes) -> bytes:
        """All of it."""
        if data:
            self.is_empty = False
        return data


class ChunkedBody:
    """Chunks; handed on with their framing, or only their contents if it `unwraps`."""

    __slots__ = (
        "_in_trailer",
        "_line",
        "_num_left",
        "_unwraps",
        "has_excess",
        "is_complete",
        "is_empty",
    )

    def __init__(self, *, unwraps: bool) -> None:
        self._unwraps = unwraps
        self._num_left = 0  # bytes of the current chunk, with the CRLF that ends it
        self._line = b""  # the beginning of a line that was cut
        self._in_trailer = False
        self.is_complete = False
        self.has_excess = False
        self.is_empty = True

    @property
    def is_between_chunks(self) -> bool:
        """Whether the last byte was the last of a chunk."""
        return not (self._num_left or self._line or self._in_trailer)

    def feed(self, data: bytes) -> bytes:
        """The data itself, or the contents of its chunks."""
        if not (self._num_left or self._line or self._in_trailer or self._unwraps):
            end = data.find(b"\r\n", 0, 8)
            size = _SIZES.get(data[:end])
            if size is not None and len(data) == end + size + 4:
                self.is_empty = False  # one chunk and all of it, as most pieces of a stream are
                return data
        contents: list[bytes] = []
        position, end = 0, len(data)
        while position < end and not self.is_complete:
            if self._num_left:
                taken = min(self._num_left, end - position)
                self._num_left -= taken
                if self._unwraps:
                    # What is left after this may be all or half of the CRLF.
                    num_crlf = max(0, 2 - self._num_left)
                    contents.append(data[position : position + max(0, taken - num_crlf)])
                position += taken
            else:
                position = self._read_line(data, position)
        if position < end:
            self.has_excess = True
        if self._unwraps:
            return b"".join(contents)
        return data if position == end else data[:position]

    def _read_line(self, data: bytes, position: int) -> int:
        """Read a chunk's size or a trailer; returns where it ends."""
        newline = data.find(b"\n", position)
        if newline < 0:
            self._line += data[position:]
            if len(self._line) > MAX_LINE_BYTES:
                raise BadFraming("a line between chunks is too long")
            return len(data)
        line = data[position : newline + 1]
        if self._line:
            line = self._line + line
            self._line = b""
        if self._in_trailer:
            self.is_complete = line == b"\r\n"
        else:
            self._start_chunk(line)
        return newline + 1

    def _start_chunk(self, line: bytes) -> None:
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise BadFraming("a chunk has no valid size")
        num_bytes = int(size[1], 16)
        if num_bytes:
            self._num_left = num_bytes + 2
            self.is_empty = False
        else:
            self._in_trailer = True
