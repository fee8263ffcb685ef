"""What a worker probably holds, judged by what it was sent.

A worker without KV events caches the prompts it answered until it runs out of room or they
grow old. Least recently used first, tails before heads: as its own cache would.

Keys that are put in at once are one run, and the order is one of runs; a key belongs to the last
run that had it. So putting in a long prompt costs a few steps in C for each key.

A conversation's long beginning is put in again and again. What was put in lately is left where
it is: a head is never older than its tail, so a bisection finds where the work begins.
"""

from collections import deque
from collections.abc import Callable, Sequence

from expediter.routing.prompt import BlockKey, Prompt

OnChange = Callable[[Sequence[BlockKey]], object]

RECENT_SHARE = 8
"""Of the capacity, and of a lifetime, one part in so many is recent. A head can be left where it
is when its tail goes in again, and that one later, but it stays in the recent two parts and is
not dropped."""


class _Run:
    """Keys put in at once, head first; `num_before` counts all that were put in before it."""

    __slots__ = ("expires_at", "keys", "num_before")

    def __init__(self, keys: list[BlockKey], expires_at: float, num_before: int) -> None:
        self.keys = keys
        self.expires_at = expires_at
        self.num_before = num_before


class AssumedBlocks:
    """At most `capacity` keys, each for a limited time; tells `added` and `dropped` of changes."""

    def __init__(self, *, capacity: int, added: OnChange, dropped: OnChange) -> None:
        self._capacity = capacity
        self._num_recent = capacity // RECENT_SHARE
        self._added = added
        self._dropped = dropped
        self._num_put = 0
        self._run_of: dict[BlockKey, _Run] = {}
        self._runs: deque[_Run] = deque()  # the oldest first
        self.num_listed = 0  # keys in runs, also those that later runs have

    def __len__(self) -> int:
        return len(self._run_of)

    def put(self, keys: Sequence[BlockKey], *, expires_at: float, slack: float = 0.0) -> None:
        """Assume a chain of keys, head first, until `expires_at`; make room if there is none.

        Keys that were put in lately, and last until `slack` before that, stay as they are.
        """
        if len(keys) > self._capacity:
            keys = keys[: self._capacity]
        moved = list(keys[self._num_lasting(keys, expires_at - slack) :])
        if moved:
            run_of = self._run_of
            new = [key for key in moved if key not in run_of]
            run = _Run(moved, expires_at, self._num_put)
            self._num_put += len(moved)
            self._runs.append(run)
            self.num_listed += len(moved)
            run_of.update(dict.fromkeys(moved, run))
            if new:
                self._added(new)
        self._make_room()

    def discard(self, key: BlockKey) -> None:
        """Forget one key, if it is here."""
        if self._run_of.pop(key, None) is not None:
            self._dropped((key,))

    def expire(self, now: float) -> None:
        """Forget what is older than its time. Equal lifetimes keep the oldest in front."""
        runs = self._runs
        while runs and runs[0].expires_at <= now:
            run = runs.popleft()
            self._drop(run, run.keys)

    def clear(self) -> None:
        """Forget everything."""
        self._dropped(list(self._run_of))
        self._run_of.clear()
        self._runs.clear()
        self.num_listed = 0

    def _make_room(self) -> None:
        """Drop the oldest runs' tails until there is room again."""
        while (num_over := len(self._run_of) - self._capacity) > 0:
            run = self._runs[0]
            if len(run.keys) <= num_over:
                self._runs.popleft()
                self._drop(run, run.keys)
            else:
                tail = run.keys[-num_over:]
                del run.keys[-num_over:]
                self._drop(run, tail)
        if self.num_listed > 2 * self._capacity:
            self._tidy()

    def _tidy(self) -> None:
        """Take out of runs what later ones have."""
        run_of = self._run_of
        for run in self._runs:
            run.keys = [key for key in run.keys if run_of.get(key) is run]
        self._runs = deque(run for run in self._runs if run.keys)
        self.num_listed = len(run_of)

    def _drop(self, run: _Run, keys: Sequence[BlockKey]) -> None:
        """Forget the keys that no later run has."""
        self.num_listed -= len(keys)
        run_of = self._run_of
        gone = [key for key in keys if run_of.get(key) is run]
        for key in gone:
            del run_of[key]
        if gone:
            self._dropped(gone)

    def _num_lasting(self, keys: Sequence[BlockKey], until: float) -> int:
        """How many of the first keys can stay where they are: put in lately, and last long enough.

        None, if so many come after them that they could be dropped on the way.
        """
        since = self._num_put - self._num_recent
        get = self._run_of.get
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            run = get(keys[middle - 1])
            if run is not None and run.num_before >= since and run.expires_at >= until:
                low = middle
            else:
                high = middle - 1
        return low if len(keys) - low <= self._capacity // 2 else 0


class AssumedPrompts:
    """What was sent to one worker; tokens and texts apart, whose blocks differ in size."""

    def __init__(
        self, *, capacity: int, text_capacity: int, added: OnChange, dropped: OnChange
    ) -> None:
        self._tokens = AssumedBlocks(capacity=capacity, added=added, dropped=dropped)
        self._texts = AssumedBlocks(capacity=text_capacity, added=added, dropped=dropped)

    def __len__(self) -> int:
        return len(self._tokens) + len(self._texts)

    def of(self, prompt: Prompt) -> AssumedBlocks:
        """Those of the prompt's kind."""
        return self._texts if prompt.is_text else self._tokens

    def discard(self, key: BlockKey) -> None:
        """Forget one key, which events have; they tell of tokens only."""
        self._tokens.discard(key)

    def expire(self, now: float) -> None:
        """Forget what is older than its time."""
        self._tokens.expire(now)
        self._texts.expire(now)

    def clear(self) -> None:
        """Forget everything."""
        self._tokens.clear()
        self._texts.clear()
