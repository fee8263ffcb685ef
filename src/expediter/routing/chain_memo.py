"""Keys of long prompts, at the cost of what is new in them.

A conversation comes back with all its turns, and naming its blocks anew takes longer than
anything else about it. So keys are remembered by spans of many blocks: one hash over a span and
the key before it finds the keys of all its blocks.
"""

from collections.abc import Sequence

import xxhash

from expediter.routing.prompt import BYTES_PER_TOKEN, BlockKey, chain_keys

SPAN_BLOCKS = 64
DEFAULT_MAX_SPANS = 4096
"""About 16 MB of keys, most of which an index holds anyway."""


class ChainMemo:
    """Computes chains of keys; remembers at most `max_spans` spans.

    Two generations stand in for an order of use: what is used moves to the younger one, and
    when that is full the older one is dropped.
    """

    def __init__(self, *, max_spans: int = DEFAULT_MAX_SPANS) -> None:
        self._max_young = max(1, max_spans // 2)
        self._young: dict[bytes, list[BlockKey]] = {}
        self._old: dict[bytes, list[BlockKey]] = {}

    @property
    def num_spans(self) -> int:
        """How many spans are remembered."""
        return len(self._young) + len(self._old)

    def chain(
        self, data: bytes, *, block_size: int, parent: BlockKey, extras: Sequence[bytes] = ()
    ) -> list[BlockKey]:
        """See `chain_keys`."""
        num_bytes = SPAN_BLOCKS * block_size * BYTES_PER_TOKEN
        digest, young = xxhash.xxh3_128_digest, self._young
        keys: list[BlockKey] = []
        if len(extras) > 1:
            return chain_keys(data, block_size=block_size, parent=parent, extras=extras)
        start = 0
        for end in range(num_bytes, len(data) + 1, num_bytes):
            span = data[start:end]
            name = digest(b"".join((parent, span, *extras)))
            found = young.get(name)
            if found is None:
                found = self._old.pop(name, None) or chain_keys(
                    span, block_size=block_size, parent=parent, extras=extras
                )
                young = self._put(name, found)
            keys += found
            parent, extras, start = found[-1], (), end
        keys += chain_keys(data[start:], block_size=block_size, parent=parent, extras=extras)
        return keys

    def _put(self, name: bytes, keys: list[BlockKey]) -> dict[bytes, list[BlockKey]]:
        """Remember a span as the one used last; returns the generation it is in."""
        if len(self._young) >= self._max_young:
            self._old, self._young = self._young, {}
        self._young[name] = keys
        return self._young
