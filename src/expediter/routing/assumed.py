"""What a worker probably holds, judged by what it was sent.

A worker without KV events caches the prompts it answered until it runs out of room or they
grow old. Least recently used first, tails before heads: as its own cache would.

Keys that are put in at once are one run, and the order is one of runs; a key belongs to the last
run that had it. So putting in a long prompt costs a few steps in C for each key. A key has a size,
because it may stand for more than a block: for all from the key before it (`marks.py`).

A conversation's long beginning is put in again and again. What was put in lately is left where
it is: a head is never older than its tail, so a bisection finds where the work begins.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, compress

from expediter.routing.prompt import BlockKey, Prompt

OnChange = Callable[[Sequence[BlockKey]], object]

RECENT_SHARE = 8
"""Of the capacity, and of a lifetime, one part in so many is recent. A head can be left where it
is when its tail goes in again, and that one later, but it stays in the recent two parts and is
not dropped."""

_MIN_LISTED = 4096  # keys in runs, before it is looked which of them later runs have


class _Run:
    """Keys put in at once, head first, and their sizes; `put_before` is all that came before."""

    __slots__ = ("expires_at", "keys", "put_before", "sizes")

    def __init__(
        self, keys: list[BlockKey], sizes: list[int], *, expires_at: float, put_before: int
    ) -> None:
        self.keys = keys
        self.sizes = sizes
        self.expires_at = expires_at
        self.put_before = put_before


class AssumedBlocks:
    """Keys of at most `capacity` in all, each for a limited time.

    Tells `added` and `dropped` of changes. A key's size is the same whenever it is put in.
    """

    def __init__(self, *, capacity: int, added: OnChange, dropped: OnChange) -> None:
        self._capacity = capacity
        self._recent = capacity // RECENT_SHARE
        self._added = added
        self._dropped = dropped
        self._put = 0
        self._run_of: dict[BlockKey, _Run] = {}
        self._runs: deque[_Run] = deque()  # the oldest first
        self.size = 0
        self.num_listed = 0  # keys in runs, also those that later runs have

    def __len__(self) -> int:
        return len(self._run_of)

    def put(
        self,
        keys: Sequence[BlockKey],
        *,
        expires_at: float,
        slack: float = 0.0,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Assume a chain of keys, head first, until `expires_at`; make room if there is none.

        Keys that were put in lately, and last until `slack` before that, stay as they are. All
        `sizes` are 1 unless they are given.
        """
        if sizes is None:
            sizes = [1] * len(keys)
        if sum(sizes) > self._capacity:
            num_fitting = sum(end <= self._capacity for end in accumulate(sizes))
            keys, sizes = keys[:num_fitting], sizes[:num_fitting]
        num_lasting = self._num_lasting(keys, sizes, expires_at - slack)
        if num_lasting < len(keys):
            moved, sizes = list(keys[num_lasting:]), list(sizes[num_lasting:])
            run = _Run(moved, sizes, expires_at=expires_at, put_before=self._put)
            self._put += sum(sizes)
            self._append(run)
        self._make_room()

    def discard(self, key: BlockKey) -> None:
        """Forget one key, if it is here."""
        run = self._run_of.pop(key, None)
        if run is not None:
            self.size -= run.sizes[run.keys.index(key)]
            self._dropped((key,))

    def expire(self, now: float) -> None:
        """Forget what is older than its time. Equal lifetimes keep the oldest in front."""
        runs = self._runs
        while runs and runs[0].expires_at <= now:
            run = runs.popleft()
            self._drop(run, run.keys, run.sizes)

    def clear(self) -> None:
        """Forget everything."""
        self._dropped(list(self._run_of))
        self._run_of.clear()
        self._runs.clear()
        self.size = self.num_listed = 0

    def _append(self, run: _Run) -> None:
        """Put in a run, which takes over its keys from others."""
        run_of = self._run_of
        new = [key for key in run.keys if key not in run_of]
        if len(new) == len(run.keys):
            self.size += sum(run.sizes)
        elif new:
            pairs = zip(run.keys, run.sizes, strict=True)
            self.size += sum([size for key, size in pairs if key not in run_of])
        self._runs.append(run)
        self.num_listed += len(run.keys)
        run_of.update(dict.fromkeys(run.keys, run))
        if new:
            self._added(new)

    def _make_room(self) -> None:
        """Drop the oldest runs' tails until there is room again."""
        while (over := self.size - self._capacity) > 0:
            run = self._runs[0]
            place = len(run.keys)
            while place and over > 0:
                place -= 1
                over -= run.sizes[place]
            keys, sizes = run.keys[place:], run.sizes[place:]
            del run.keys[place:], run.sizes[place:]
            if place == 0:
                self._runs.popleft()
            self._drop(run, keys, sizes)
        if self.num_listed > 2 * max(len(self._run_of), min(self._capacity, _MIN_LISTED)):
            self._tidy()

    def _tidy(self) -> None:
        """Take out of runs what later ones have."""
        run_of = self._run_of
        for run in self._runs:
            owned = [run_of.get(key) is run for key in run.keys]
            run.keys = list(compress(run.keys, owned))
            run.sizes = list(compress(run.sizes, owned))
        self._runs = deque(run for run in self._runs if run.keys)
        self.num_listed = len(run_of)

    def _drop(self, run: _Run, keys: Sequence[BlockKey], sizes: Sequence[int]) -> None:
        """Forget the keys that no later run has."""
        self.num_listed -= len(keys)
        run_of = self._run_of
        owned = [run_of.get(key) is run for key in keys]
        gone = list(compress(keys, owned))
        if gone:
            self.size -= sum(compress(sizes, owned))
            for key in gone:
                del run_of[key]
            self._dropped(gone)

    def _num_lasting(self, keys: Sequence[BlockKey], sizes: Sequence[int], until: float) -> int:
        """How many of the first keys can stay where they are: put in lately, and last long enough.

        None, if so many come after them that they could be dropped on the way.
        """
        since = self._put - self._recent
        get = self._run_of.get
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            run = get(keys[middle - 1])
            if run is not None and run.put_before >= since and run.expires_at >= until:
                low = middle
            else:
                high = middle - 1
        return low if sum(sizes[low:]) <= self._capacity // 2 else 0


class AssumedPrompts:
    """What was sent to one worker, at most `capacity` tokens of each kind: tokens and texts."""

    def __init__(self, *, capacity: int, added: OnChange, dropped: OnChange) -> None:
        self._tokens = AssumedBlocks(capacity=capacity, added=added, dropped=dropped)
        self._texts = AssumedBlocks(capacity=capacity, added=added, dropped=dropped)

    def __bool__(self) -> bool:
        return self.num_tokens > 0

    @property
    def num_tokens(self) -> int:
        """How many tokens all of it has."""
        return self._tokens.size + self._texts.size

    @property
    def num_keys(self) -> int:
        """How many keys stand for them."""
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
