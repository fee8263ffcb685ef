"""Sessions whose prompt grows: people who chat, agents that call tools.

Both say something, read the answer, and come back with all of it and a little more. What comes
back is a person's next message after a pause to think, or a tool's result after it has run.
"""

import random
from collections.abc import Iterable, Iterator
from typing import Literal

from expediter.config import Section
from expediter.workload.distributions import (
    Constant,
    Distribution,
    Exponential,
    Lognormal,
    Popularity,
    Uniform,
    Zipf,
    num_tokens,
)
from expediter.workload.shelf import Shelf
from expediter.workload.transcript import EMPTY, Transcript
from expediter.workload.turn import Turn


class Conversations(Section, frozen=True, kw_only=True, tag="conversations"):
    """Each opens with a shared system prompt and a message of its own.

    `name` is the label, and begins the names of all texts and sessions: workloads to be merged
    need different ones.
    """

    name: str
    system: Popularity
    system_tokens: Distribution
    opening_tokens: Distribution
    message_tokens: Distribution
    message_role: Literal["user", "tool"] = "user"
    answer_tokens: Distribution
    num_turns: Distribution
    pause: Distribution  # seconds from the end of an answer to the next message

    def turns(self, starts: Iterable[float], *, rng: random.Random) -> Iterator[Turn]:
        """One conversation for each start, in a closed loop."""
        shelf = Shelf(f"{self.name}/system", self.system_tokens, seed=rng.getrandbits(64))
        systems = self.system.draws(rng)
        for number, (start, system) in enumerate(zip(starts, systems, strict=False)):
            before = shelf.after(EMPTY, system)
            yield from self._conversation(f"{self.name}/{number}", before, start=start, rng=rng)

    def _conversation(
        self, session: str, before: Transcript, *, start: float, rng: random.Random
    ) -> Iterator[Turn]:
        for turn in range(num_tokens(self.num_turns, rng)):
            tokens = self.message_tokens if turn else self.opening_tokens
            prompt = before.then(
                f"{session}/{turn}/message",
                num_tokens(tokens, rng),
                role=self.message_role if turn else "user",
            )
            before = prompt.then(
                f"{session}/{turn}/answer", num_tokens(self.answer_tokens, rng), role="assistant"
            )
            yield Turn(
                arrival_time=start,
                transcript=before,
                label=self.name,
                session=session,
                think_time=self.pause.draw(rng) if turn else None,
            )


CHAT = Conversations(
    name="chat",
    system=Zipf(4),
    system_tokens=Constant(2000),
    opening_tokens=Lognormal(200, 300),
    message_tokens=Lognormal(100, 150),
    answer_tokens=Lognormal(250, 250),
    num_turns=Exponential(8),
    pause=Lognormal(20, 30),
)
"""People: short messages, long pauses. The numbers are ours, of the size that traces show."""

AGENTS = Conversations(
    name="agents",
    system=Zipf(8),
    system_tokens=Uniform(2000, 6000),  # instructions and the tools' schemas
    opening_tokens=Lognormal(400, 400),
    message_tokens=Lognormal(800, 1200),
    message_role="tool",
    answer_tokens=Lognormal(80, 60),
    num_turns=Uniform(4, 24),
    pause=Lognormal(1.5, 2.0),
)
"""Agents: long results of tools, short calls, hardly a pause. The numbers are ours."""
