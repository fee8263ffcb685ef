"""At which distances the beginnings of a long prompt are remembered.

What a worker is assumed to hold is an estimate, and naming and remembering blocks is most of what
a long new prompt costs. So every block is a mark at first, and marks are farther apart the farther
they are from the beginning: never by more than an eighth of the way, or `FINE_TOKENS`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import count, takewhile

from expediter.routing.chains import BYTES_PER_TOKEN

DENSE_TOKENS = 256  # up to here, every block of tokens is a mark
FINE_TOKENS = 64  # from one mark of a text to the next, at least
_STEPS = ((1024, 64), (4096, 128), (16_384, 256))  # up to so many tokens, so far apart
_LAST_STEP = 512


class Marks:
    """The marks for blocks of one size; there are as many as anybody asked for."""

    def __init__(self, block_size: int, *, first_step: int = 1) -> None:
        self._block_size = block_size
        self._first_step = first_step
        self._ends: list[int] = []
        self._sizes: list[int] = []
        self._places: list[int] = []
        self._byte_ends: list[int] = []
        self._multiples: dict[int, tuple[int, list[int]]] = {}

    def num(self, num_tokens: int) -> int:
        """How many marks there are in the first so many tokens."""
        ends = self._ends
        while not ends or ends[-1] <= num_tokens:
            self._append(ends[-1] if ends else 0)
        return bisect_right(ends, num_tokens)

    def end(self, num_marks: int) -> int:
        """How many tokens the first marks name; one mark or more."""
        return self._ends[num_marks - 1]

    def byte_ends(self, num_marks: int) -> Sequence[int]:
        """How many packed bytes each of the first marks names."""
        return self._byte_ends[:num_marks]

    def sizes(self, num_marks: int) -> Sequence[int]:
        """How many tokens each of them adds."""
        return self._sizes[:num_marks]

    def places(self, num_marks: int) -> Sequence[int]:
        """The block that each of them ends."""
        return self._places[:num_marks]

    def multiples(self, distance: int, num_marks: int) -> Sequence[int]:
        """Which of them end at so many tokens, at twice as many, and so on without a gap."""
        num_known, found = self._multiples.get(distance, (0, []))
        if num_known < num_marks:
            place_of = {end: place for place, end in enumerate(self._ends)}
            ends = takewhile(place_of.__contains__, count(distance, distance))
            found = [place_of[end] for end in ends]
            self._multiples[distance] = len(self._ends), found
        return found[: bisect_left(found, num_marks)]

    def _append(self, start: int) -> None:
        step = self._first_step if start < DENSE_TOKENS else _step(start)
        size = -(-step // self._block_size) * self._block_size
        self._ends.append(start + size)
        self._byte_ends.append((start + size) * BYTES_PER_TOKEN)
        self._sizes.append(size)
        self._places.append((start + size) // self._block_size - 1)


def _step(start: int) -> int:
    return next((step for end, step in _STEPS if start < end), _LAST_STEP)


@lru_cache(maxsize=64)
def marks_of(block_size: int) -> Marks:
    """The marks of tokens in blocks of this size."""
    return Marks(block_size)


TEXT_MARKS = Marks(1, first_step=FINE_TOKENS)
"""Those of texts, whatever the size of the workers' blocks."""
