"""A burst in which the most popular prefix crowds out the others.

Three classes share one long system prompt. A adds a popular tool's instructions and comes most
often; B adds a rare customer's; C adds nothing. A router that looks at the longest match alone
sends all of them where A is.
"""

import random
from collections.abc import Iterator

from expediter.config import Positive, Section
from expediter.workload.arrivals import Arrivals, Profile, Steady
from expediter.workload.distributions import Constant, Distribution, Zipf, num_tokens
from expediter.workload.shelf import Shelf
from expediter.workload.streams import merged
from expediter.workload.transcript import EMPTY, Transcript
from expediter.workload.turn import Turn


class PrefixClass(Section, frozen=True, kw_only=True):
    """Requests that add one of some instructions to the system prompt."""

    label: str
    profile: Profile
    instruction_tokens: Distribution
    instructions: Zipf = Zipf(1)


class HotPrefix(Section, frozen=True, kw_only=True, tag="hot-prefix"):
    """Poisson arrivals in each class. B's instructions are drawn evenly from 50 customers'."""

    name: str = "hot-prefix"
    system_tokens: Positive = 8000
    answer_tokens: Distribution = Constant(100)
    classes: tuple[PrefixClass, ...] = (
        PrefixClass(label="A", profile=Steady(100), instruction_tokens=Constant(200)),
        PrefixClass(
            label="B",
            profile=Steady(5),
            instruction_tokens=Constant(400),
            instructions=Zipf(50, 0.0),
        ),
        PrefixClass(label="C", profile=Steady(20), instruction_tokens=Constant(0)),
    )

    def turns(self, *, rng: random.Random) -> Iterator[Turn]:
        """All classes, in order of time."""
        system = EMPTY.then(f"{self.name}/system", self.system_tokens, role="system")
        seeds = [rng.getrandbits(64) for _ in self.classes]
        return merged(
            *(
                self._class(each, system, rng=random.Random(seed))
                for each, seed in zip(self.classes, seeds, strict=True)
            )
        )

    def _class(
        self, each: PrefixClass, system: Transcript, *, rng: random.Random
    ) -> Iterator[Turn]:
        name = f"{self.name}/{each.label}"
        shelf = Shelf(name, each.instruction_tokens, seed=rng.getrandbits(64))
        times = Arrivals(each.profile).times(rng)
        for number, (time, instruction) in enumerate(
            zip(times, each.instructions.draws(rng), strict=False)
        ):
            prompt = shelf.after(system, instruction)
            length = num_tokens(self.answer_tokens, rng)
            yield Turn(
                arrival_time=time,
                transcript=prompt.then(f"{name}/answer/{number}", length, role="assistant"),
                label=each.label,
            )
