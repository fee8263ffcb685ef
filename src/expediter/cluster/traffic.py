"""The last requests as a trace that can be replayed: when they came, how long they and their
answers were, and which of them begin alike.

A row is what Mooncake's public traces have: an id for each 512 tokens of the prompt, equal where
all tokens up to there are equal. The ids are numbers of this trace alone; nothing of what was said
can be told from them.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count

import msgspec

from expediter.clock import Clock
from expediter.routing.prompt import BlockKey, Prompt

BLOCK_TOKENS = 512


class TracedRequest(msgspec.Struct, frozen=True):
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
    """The last `capacity` requests that were answered."""

    def __init__(self, *, clock: Clock, capacity: int = 20_000) -> None:
        self._clock = clock
        self._recent: deque[TracedRequest] = deque(maxlen=capacity)

    def add(
        self,
        prompt: Prompt | None,
        *,
        arrived_at: float,
        num_prompt_tokens: int,
        num_output_tokens: int,
    ) -> None:
        """A request was answered. Without a prompt it shares nothing with any other."""
        keys = prompt.named_every(BLOCK_TOKENS) if prompt is not None else ()
        self._recent.append(
            TracedRequest(arrived_at, num_prompt_tokens, num_output_tokens, tuple(keys))
        )

    def rows(self, *, seconds: float) -> list[TraceRow]:
        """What came in the last so many seconds, in order of arrival."""
        since = self._clock() - seconds
        recent = sorted(
            (each for each in self._recent if each.arrived_at >= since),
            key=lambda each: each.arrived_at,
        )
        start = recent[0].arrived_at if recent else 0.0
        ids: dict[BlockKey, int] = {}
        fresh = count()
        return [
            TraceRow(
                timestamp=round((each.arrived_at - start) * 1000),
                input_length=each.num_prompt_tokens,
                output_length=each.num_output_tokens,
                hash_ids=list(_hash_ids(each, ids, fresh)),
            )
            for each in recent
        ]

    def jsonl(self, *, seconds: float) -> bytes:
        """The rows as a file of lines."""
        return b"".join(msgspec.json.encode(row) + b"\n" for row in self.rows(seconds=seconds))


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
