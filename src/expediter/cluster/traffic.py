"""The last requests as a trace that can be replayed: when they came, how long they and their
answers were, and which of them begin alike.

A row is what Mooncake's public traces have: an id for each 512 tokens of the prompt, equal where
all tokens up to there are equal. The ids are numbers of this trace alone; nothing of what was said
can be told from them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from struct import Struct

import msgspec

from expediter.clock import Clock
from expediter.routing.prompt import BlockKey, Prompt

BLOCK_TOKENS = 512
_NUMBERS = Struct("3d")  # of a request: when it came, tokens of its prompt, tokens of its answer


class TracedRequest(msgspec.Struct, frozen=True, gc=False):
    """`keys` name the prompt's full blocks of `BLOCK_TOKENS`."""

    arrived_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    keys: tuple[BlockKey, ...]


class TraceRow(msgspec.Struct, frozen=True):
    """One line of a trace; `timestamp` is milliseconds from its start."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


class TrafficLog:
    """The last `capacity` requests that were answered; fewer if they have many blocks.

    With a capacity of 0 nothing is kept, for a fleet of whose traffic nobody asks.
    They are kept as numbers in one buffer. As objects they would be the memory that every request
    writes to anew, and most of it would have left the processor's caches since.
    """

    def __init__(
        self, *, clock: Clock, capacity: int = 20_000, max_blocks: int = 1_000_000
    ) -> None:
        self._clock = clock
        self._capacity = capacity
        self._max_blocks = max_blocks
        self._num_added = 0
        self._oldest = 0  # what came before that is not kept
        self._numbers = bytearray(_NUMBERS.size * capacity)  # a ring
        self._keys: deque[tuple[int, tuple[BlockKey, ...]]] = deque()  # of those with a prompt
        self._num_blocks = 0

    def add(
        self,
        prompt: Prompt | None,
        *,
        arrived_at: float,
        num_prompt_tokens: int,
        num_output_tokens: int,
    ) -> None:
        """A request was answered. Without a prompt it shares nothing with any other."""
        if not self._capacity:
            return
        number = self._num_added
        at = _NUMBERS.size * (number % self._capacity)
        _NUMBERS.pack_into(self._numbers, at, arrived_at, num_prompt_tokens, num_output_tokens)
        self._num_added = number + 1
        if prompt is not None:
            self._keep(number, tuple(prompt.named_every(BLOCK_TOKENS)))

    def recent(self, *, seconds: float) -> list[TracedRequest]:
        """What came in the last so many seconds."""
        since, keys = self._clock() - seconds, dict(self._keys)
        found = []
        for number in range(max(self._oldest, self._num_added - self._capacity), self._num_added):
            at = _NUMBERS.size * (number % self._capacity)
            arrived_at, num_prompt, num_output = _NUMBERS.unpack_from(self._numbers, at)
            if arrived_at >= since:
                names = keys.get(number, ())
                found.append(TracedRequest(arrived_at, int(num_prompt), int(num_output), names))
        return found

    def rows(self, *, seconds: float) -> list[TraceRow]:
        """The same as rows of a trace, in order of arrival."""
        return trace_rows(self.recent(seconds=seconds))

    def jsonl(self, *, seconds: float) -> bytes:
        """The rows as a file of lines."""
        return jsonl(self.recent(seconds=seconds))

    def _keep(self, number: int, keys: tuple[BlockKey, ...]) -> None:
        """Keep the names of a request's blocks; those of the oldest go."""
        kept = self._keys
        kept.append((number, keys))
        self._num_blocks += len(keys)
        while kept and (
            self._num_blocks > self._max_blocks or kept[0][0] <= number - self._capacity
        ):
            self._oldest = kept[0][0] + 1
            self._num_blocks -= len(kept.popleft()[1])


def jsonl(requests: Iterable[TracedRequest]) -> bytes:
    """Requests as a trace, a line each."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in trace_rows(requests))


def trace_rows(requests: Iterable[TracedRequest]) -> list[TraceRow]:
    """Rows in order of arrival, of one log or of several with one clock."""
    ordered = sorted(requests, key=lambda each: each.arrived_at)
    start = ordered[0].arrived_at if ordered else 0.0
    ids: dict[BlockKey, int] = {}
    fresh = count()
    return [
        TraceRow(
            timestamp=round((each.arrived_at - start) * 1000),
            input_length=each.num_prompt_tokens,
            output_length=each.num_output_tokens,
            hash_ids=list(_hash_ids(each, ids, fresh)),
        )
        for each in ordered
    ]


def _hash_ids(
    request: TracedRequest, ids: dict[BlockKey, int], fresh: Iterator[int]
) -> Iterator[int]:
    """A number for each block; what has no name, as the last, part-full one, is like no other."""
    num_blocks = -(-request.num_prompt_tokens // BLOCK_TOKENS)
    for key in request.keys[:num_blocks]:
        number = ids.get(key)
        if number is None:
            number = ids[key] = next(fresh)
        yield number
    for _ in range(num_blocks - len(request.keys)):
        yield next(fresh)
