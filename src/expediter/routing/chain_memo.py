"""Keys of long prompts, at the cost of what is new in them.

A conversation comes back with all its turns, and naming its blocks anew takes longer than
anything else about it. So keys are remembered by spans of many blocks, and what is left after
those by spans of a few: the hash of a span and the key before it find the keys of all its blocks.
"""

from collections.abc import Sequence

import xxhash

from expediter.routing.chains import BlockKey, chain_ends

SPAN_BLOCKS = 64
SHORT_BLOCKS = 8
DEFAULT_MAX_SPANS = 4096
"""Of each length; about 18 MB of keys, most of which an index holds anyway."""

_digest = xxhash.xxh3_128_digest


class ChainMemo:
    """Computes chains of keys; remembers at most `max_spans` spans of each length."""

    def __init__(self, *, max_spans: int = DEFAULT_MAX_SPANS) -> None:
        self._spans = [(size, _Spans(max_spans)) for size in (SPAN_BLOCKS, SHORT_BLOCKS)]

    @property
    def num_spans(self) -> int:
        """How many spans are remembered."""
        return sum(len(spans) for _, spans in self._spans)

    def chain(
        self,
        data: bytes,
        *,
        ends: Sequence[int],
        parent: BlockKey,
        extras: Sequence[bytes] = (),
    ) -> list[BlockKey]:
        """See `chain_ends`."""
        if len(extras) > 1:
            return chain_ends(data, ends=ends, parent=parent, extras=extras)
        keys: list[BlockKey] = []
        view, start, done = memoryview(data), 0, 0
        for num_blocks, spans in self._spans:
            while done + num_blocks <= len(ends):
                end = ends[done + num_blocks - 1]
                name = b"".join((_digest(view[start:end]), parent, *extras))
                found = spans.get(name)
                if found is None:
                    own_ends = [each - start for each in ends[done : done + num_blocks]]
                    found = chain_ends(data[start:end], ends=own_ends, parent=parent, extras=extras)
                    spans.put(name, found)
                keys += found
                parent, extras, start, done = found[-1], (), end, done + num_blocks
        own_ends = [each - start for each in ends[done:]]
        keys += chain_ends(data[start:], ends=own_ends, parent=parent, extras=extras)
        return keys


class _Spans:
    """The keys of spans by name.

    Two generations stand in for an order of use: what is used moves to the younger one, and
    when that is full the older one is dropped.
    """

    def __init__(self, max_spans: int) -> None:
        self._max_young = max(1, max_spans // 2)
        self._young: dict[bytes, list[BlockKey]] = {}
        self._old: dict[bytes, list[BlockKey]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, name: bytes) -> list[BlockKey] | None:
        """A span's keys, if they are remembered."""
        keys = self._young.get(name)
        if keys is None:
            keys = self._old.pop(name, None)
            if keys is not None:
                self.put(name, keys)
        return keys

    def put(self, name: bytes, keys: list[BlockKey]) -> None:
        """Remember a span as the one used last."""
        if len(self._young) >= self._max_young:
            self._old, self._young = self._young, {}
        self._young[name] = keys
