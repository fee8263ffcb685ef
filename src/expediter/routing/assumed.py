"""What a worker probably holds, judged by what it was sent.

A worker without KV events caches the prompts it answered until it runs out of room or they
grow old. Least recently used first, tails before heads: as its own cache would.

A conversation's long beginning is put in again and again. What was put in lately is left where
it is: a head is never older than its tail, so a bisection finds where the work begins.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from expediter.routing.prompt import BlockKey

OnChange = Callable[[BlockKey], None]

RECENT_SHARE = 8
"""Of the capacity, and of a lifetime, one part in so many is recent. A head can be left where it
is when its tail goes in again, and that one later, but it stays in the recent two parts and is
not dropped."""


class AssumedBlocks:
    """At most `capacity` keys, each for a limited time; tells `added` and `dropped` of changes."""

    def __init__(self, *, capacity: int, added: OnChange, dropped: OnChange) -> None:
        self._capacity = capacity
        self._num_recent = capacity // RECENT_SHARE
        self._added = added
        self._dropped = dropped
        self._num_put = 0
        # When a key's time is up, and how many were put in before it.
        self._marks: OrderedDict[BlockKey, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def put(self, keys: Sequence[BlockKey], *, expires_at: float, slack: float = 0.0) -> None:
        """Assume a chain of keys, head first, until `expires_at`; make room if there is none.

        Keys that were put in lately, and last until `slack` before that, stay as they are.
        """
        if len(keys) > self._capacity:
            keys = keys[: self._capacity]
        marks = self._marks
        num_lasting = self._num_lasting(keys, expires_at - slack)
        # A tail is put in before its head, so the head is the more recent and outlives it.
        for key in reversed(keys[num_lasting:]):
            if key not in marks:
                self._added(key)
            self._num_put += 1
            marks[key] = (expires_at, self._num_put)
            marks.move_to_end(key)
        while len(marks) > self._capacity:
            self._dropped(marks.popitem(last=False)[0])

    def discard(self, key: BlockKey) -> None:
        """Forget one key, if it is here."""
        if self._marks.pop(key, None) is not None:
            self._dropped(key)

    def expire(self, now: float) -> None:
        """Forget what is older than its time. Equal lifetimes keep the oldest in front."""
        marks = self._marks
        while marks:
            key = next(iter(marks))
            if marks[key][0] > now:
                return
            del marks[key]
            self._dropped(key)

    def clear(self) -> None:
        """Forget everything."""
        for key in self._marks:
            self._dropped(key)
        self._marks.clear()

    def _num_lasting(self, keys: Sequence[BlockKey], until: float) -> int:
        """How many of the first keys can stay where they are: put in lately, and last long enough.

        None, if so many come after them that they could be dropped on the way.
        """
        since = self._num_put - self._num_recent
        get = self._marks.get
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            mark = get(keys[middle - 1])
            if mark is not None and mark[1] > since and mark[0] >= until:
                low = middle
            else:
                high = middle - 1
        return low if len(keys) - low <= self._capacity // 2 else 0
