"""Words for segments that have none: plain nonsense, the same for the same name everywhere.

A live endpoint shares KV by tokens. So a segment's words follow from its name and a seed alone,
and a shorter segment of the same name is the beginning of a longer one.
"""

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from expediter.workload.transcript import CountTokens, Segment, Transcript
from expediter.workload.words import WORDS

_SAMPLE_WORDS = 2000
_SENTENCE_WORDS = (6, 14)
_BETWEEN = "\n\n"


class Prose:
    """Writes texts of about the number of tokens asked for, as `count` counts them."""

    def __init__(self, count: CountTokens, *, seed: int = 0, max_remembered: int = 4096) -> None:
        self._seed = seed
        sample = self._write("a sample to measure", _SAMPLE_WORDS)
        self._words_per_token = _SAMPLE_WORDS / count(sample)
        self._remembered = lru_cache(max_remembered)(self._compose)

    def words(self, segment: Segment) -> str:
        """Its own text if it has one, else a made-up one."""
        return self._remembered(segment)

    def text(self, transcript: Transcript) -> str:
        """All of it in one piece."""
        return _BETWEEN.join(map(self.words, transcript.segments))

    def messages(self, transcript: Transcript) -> list[dict[str, str]]:
        """All of it as the messages of a chat; segments of one role in a row are one message."""
        return [
            {"role": role, "content": _BETWEEN.join(map(self.words, segments))}
            for role, segments in groupby(transcript.segments, key=lambda segment: segment.role)
        ]

    def _compose(self, segment: Segment) -> str:
        if segment.text is not None:
            return segment.text
        num_words = max(1, round(segment.num_tokens * self._words_per_token))
        return self._write(segment.name, num_words)

    def _write(self, name: str, num_words: int) -> str:
        rng = random.Random(f"{self._seed} {name}")
        words: list[str] = []
        while len(words) < num_words:
            words += _sentence(rng)
        return " ".join(words[:num_words])


def _sentence(rng: random.Random) -> Iterator[str]:
    first, *middle, last = rng.choices(WORDS, k=rng.randint(*_SENTENCE_WORDS))
    yield first.capitalize()
    yield from middle
    yield last + "."
