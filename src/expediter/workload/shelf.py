"""Texts that many prompts share."""

import random
from functools import lru_cache

from expediter.workload.distributions import Distribution, num_tokens
from expediter.workload.transcript import Role, Transcript

MAX_REMEMBERED = 4096


class Shelf:
    """Numbered texts, each with one length for ever: `name`/0, `name`/1 and so on.

    The lengths follow from `seed` and the number alone, so nothing is kept but what is in use.
    """

    def __init__(
        self, name: str, tokens: Distribution, *, seed: int, role: Role = "system"
    ) -> None:
        self._name = name
        self._tokens = tokens
        self._seed = seed
        self._role = role
        self._remembered = lru_cache(MAX_REMEMBERED)(self._make)

    def after(self, before: Transcript, number: int) -> Transcript:
        """The transcript and then the text of that number; the same object while remembered."""
        return self._remembered(before, number)

    def _make(self, before: Transcript, number: int) -> Transcript:
        rng = random.Random(f"{self._seed} {self._name} {number}")
        length = num_tokens(self._tokens, rng, at_least=0)
        return before.then(f"{self._name}/{number}", length, role=self._role)
