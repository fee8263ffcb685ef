"""The beginnings of conversations that are remembered, by the bytes they were read from.

One hash over a list's bytes up to the end of a message tells whether all before it is known. Those
ends are looked for from the end of the list, so of a conversation that comes back only what is new
in it is parsed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from expediter.routing.stem import Stem

DEFAULT_STEM_BYTES = 64 * 1024 * 1024
MAX_ENDS = 6  # that are tried: so many messages may be new
_STEM_BYTES = 900  # of a remembered stem, besides its tokens
_KEYS_SHARE = 1.2  # bytes of keys for each byte of tokens
_LOOK_BACK = (4096, 65_536, 2**32)  # bytes, until there is an end
_MAX_BRACES = 256  # that are looked at: each is found fast, and none in a row of other bytes
_CLOSING = ord("]")

_digest = xxhash.xxh3_128_digest


class Known(NamedTuple):
    """The first bytes of a list that are known: those before `end`. `name` is the whole's."""

    stem: Stem
    end: int
    name: bytes


class Stems:
    """Stems by name, at most so many bytes.

    Two generations stand in for an order of use: what is used moves to the younger one, and when
    that is full the older one is dropped. A stem's parents are never in an older one than itself.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_young = max_bytes / 3
        self._young: dict[bytes, Stem] = {}
        self._old: dict[bytes, Stem] = {}
        self._num_young_bytes = self._num_old_bytes = 0.0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def num_bytes(self) -> float:
        """What they take, about."""
        return self._num_young_bytes + self._num_old_bytes

    def longest(self, raw: memoryview) -> Known | None:
        """The longest beginning of a list of messages that is known, of those that were tried."""
        end = len(raw) - 1
        if end < 1 or raw[end] != _CLOSING:
            return None
        whole = name = _digest(raw[:end])
        for _ in range(MAX_ENDS):
            stem = self._get(name)
            if stem is not None:
                return Known(stem, end, whole)
            end = _end_before(raw, end)
            if end < 0:
                return None
            name = _digest(raw[:end])
        return None

    def grow(
        self,
        raw: memoryview,
        known: Known | None,
        turns: Sequence[Sequence[bytes]],
        packed: Sequence[bytes],
    ) -> Stem | None:
        """The stem of what is known of the list, and then of its turns that are packed.

        None if it cannot be told where in the list each turn ends.
        """
        start = 1 if known is None else known.end
        ends = _ends(raw, start, turns)
        if ends is None:
            return None
        hashed, stem = xxhash.xxh3_128(raw[:start]), known.stem if known is not None else None
        for end, data in zip(ends, packed, strict=False):
            hashed.update(raw[start:end])
            stem, start = Stem(data, stem, name=hashed.digest()), end
        if stem is not None:
            self._put(stem)
        return stem

    def _get(self, name: bytes) -> Stem | None:
        stem = self._young.get(name)
        if stem is None and (stem := self._old.get(name)) is not None:
            self._put(stem)
        return stem

    def _put(self, stem: Stem) -> None:
        """Remember it, and its parents, as used last."""
        used: Stem | None = stem
        while used is not None and used.name not in self._young:
            self._young[used.name] = used
            self._num_young_bytes += _size(used)
            if self._old.pop(used.name, None) is not None:
                self._num_old_bytes -= _size(used)
            used = used.parent
        if self._num_young_bytes > self._max_young:
            self._old, self._young = self._young, {}
            self._num_old_bytes, self._num_young_bytes = self._num_young_bytes, 0.0
            if self._num_old_bytes > 2 * self._max_young:  # one conversation fills it all
                self._old, self._num_old_bytes = {}, 0.0


class Seen:
    """Names that came by, the last `max_names` at least."""

    def __init__(self, *, max_names: int) -> None:
        self._max_names = max_names
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def add(self, name: bytes) -> bool:
        """Take it down; whether it came by before."""
        if name in self._young:
            return True
        self._young.add(name)
        was_there = name in self._old
        if len(self._young) >= self._max_names:
            self._old, self._young = self._young, set()
        return was_there


def _size(stem: Stem) -> float:
    return _STEM_BYTES + (1 + _KEYS_SHARE) * len(stem.data)


def _end_before(raw: memoryview, end: int) -> int:
    """Where an object before this one ends; negative if there is none to be seen."""
    num_braces = 0
    for look_back in _LOOK_BACK:
        start = max(0, end - look_back)
        part = bytes(raw[start:end])
        place = part.rfind(b"{")
        while place >= 0 and num_braces < _MAX_BRACES:
            before = part[max(0, place - 3) : place]
            # Within a string a quote has a backslash before it.
            if before.endswith((b"},", b"}, ")) and part[place + 1 : place + 2] == b'"':
                return start + place - (1 if before.endswith(b"},") else 2)
            place = part.rfind(b"{", 0, place)
            num_braces += 1
        if start == 0:
            break
    return -1


def _ends(raw: memoryview, start: int, turns: Sequence[Sequence[bytes]]) -> list[int] | None:
    """Where each turn ends, if nothing but commas, or commas and spaces, part their messages."""
    messages = [message for turn in turns for message in turn]
    rest = bytes(raw[start:-1])
    for comma in (b",", b", "):
        before = b"" if start == 1 else comma
        if rest == before + comma.join(messages):
            ends, end = [], start + len(before) - len(comma)
            for turn in turns:
                end += sum(len(message) + len(comma) for message in turn)
                ends.append(end)
            return ends
    return None
