"""Chat traffic of the comparison of routing policies on the project's page.

Each request is one of many conversations, drawn by a Zipf law and independent of all others.
Its prompt is a system prompt, the conversation's history and a new message. A history begins
with an opening, grows by message and answer at every visit, and starts over when it is too long.
"""

import random
from collections.abc import Iterable, Iterator

from expediter.config import NotNegative, Positive, Section
from expediter.workload.distributions import Zipf
from expediter.workload.transcript import EMPTY, Transcript
from expediter.workload.turn import Turn


class Demo(Section, frozen=True, kw_only=True, tag="demo"):
    """Conversation i has system prompt i mod `num_systems`.

    What starts over is a new conversation of the same person: it shares only the system prompt
    with the old one. `history_tokens` is the longest history that is still continued.
    """

    name: str = "demo"
    num_conversations: Positive = 500
    skew: NotNegative = 1.0
    num_systems: Positive = 4
    system_tokens: Positive = 2000
    opening_tokens: Positive = 500
    message_tokens: Positive = 300
    answer_tokens: Positive = 200
    history_tokens: Positive = 20_000

    def turns(self, arrivals: Iterable[float], *, rng: random.Random) -> Iterator[Turn]:
        """One visit for each arrival."""
        histories: dict[int, Transcript] = {}
        visits = Zipf(self.num_conversations, self.skew).draws(rng)
        for number, (time, who) in enumerate(zip(arrivals, visits, strict=False)):
            history = histories.get(who)
            if history is None or self._is_too_long(history):
                history = self._opening(who, number)
            message = history.then(f"{self.name}/{who}/{number}/message", self.message_tokens)
            histories[who] = message.then(
                f"{self.name}/{who}/{number}/answer", self.answer_tokens, role="assistant"
            )
            yield Turn(
                arrival_time=time,
                transcript=histories[who],
                label=self.name,
                session=f"{self.name}/{who}",
            )

    def _opening(self, who: int, number: int) -> Transcript:
        system = f"{self.name}/system/{who % self.num_systems}"
        return EMPTY.then(system, self.system_tokens, role="system").then(
            f"{self.name}/{who}/{number}/opening", self.opening_tokens
        )

    def _is_too_long(self, history: Transcript) -> bool:
        return history.num_tokens - self.system_tokens > self.history_tokens
