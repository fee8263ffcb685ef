"""What a worker probably holds, judged by what it was sent.

A worker without KV events caches the prompts it answered until it runs out of room or they
grow old. Least recently used first, tails before heads: as its own cache would.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from expediter.routing.prompt import BlockKey

OnChange = Callable[[BlockKey], None]


class AssumedBlocks:
    """At most `capacity` keys, each for a limited time; tells `added` and `dropped` of changes."""

    def __init__(self, *, capacity: int, added: OnChange, dropped: OnChange) -> None:
        self._capacity = capacity
        self._added = added
        self._dropped = dropped
        self._expiry: OrderedDict[BlockKey, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._expiry)

    def put(self, keys: Sequence[BlockKey], *, expires_at: float) -> None:
        """Assume a chain of keys, head first, until `expires_at`; make room if there is none."""
        expiry = self._expiry
        # A tail is put in before its head, so the head is the more recent and outlives it.
        for key in reversed(keys[: self._capacity]):
            if key not in expiry:
                self._added(key)
            expiry[key] = expires_at
            expiry.move_to_end(key)
        while len(expiry) > self._capacity:
            self._dropped(expiry.popitem(last=False)[0])

    def discard(self, key: BlockKey) -> None:
        """Forget one key, if it is here."""
        if self._expiry.pop(key, None) is not None:
            self._dropped(key)

    def expire(self, now: float) -> None:
        """Forget what is older than its time. Equal lifetimes keep the oldest in front."""
        expiry = self._expiry
        while expiry:
            key = next(iter(expiry))
            if expiry[key] > now:
                return
            del expiry[key]
            self._dropped(key)

    def clear(self) -> None:
        """Forget everything."""
        for key in self._expiry:
            self._dropped(key)
        self._expiry.clear()
