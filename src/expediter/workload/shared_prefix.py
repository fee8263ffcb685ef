"""Requests of one turn that begin alike: questions on documents, examples, parallel samples."""

import random
from collections.abc import Iterable, Iterator

from expediter.config import Positive, Section
from expediter.workload.distributions import (
    Constant,
    Distribution,
    Lognormal,
    Popularity,
    Uniform,
    Zipf,
    num_tokens,
)
from expediter.workload.shelf import Shelf
from expediter.workload.transcript import EMPTY, Role, Transcript
from expediter.workload.turn import Turn


class Level(Section, frozen=True, kw_only=True):
    """Texts that prompts share at one depth, each drawn without regard to the levels before."""

    texts: Popularity
    tokens: Distribution
    role: Role = "system"


class SharedPrefix(Section, frozen=True, kw_only=True, tag="shared-prefix"):
    """One text of each level, then a question of its own, asked `num_samples` times at once.

    `name` is the label, and begins the names of all texts: workloads to be merged need
    different ones.
    """

    name: str
    levels: tuple[Level, ...]
    question_tokens: Distribution
    answer_tokens: Distribution
    num_samples: Positive = 1

    def turns(self, starts: Iterable[float], *, rng: random.Random) -> Iterator[Turn]:
        """One prompt for each start."""
        prefixes = self._prefixes(rng)
        for number, (start, prefix) in enumerate(zip(starts, prefixes, strict=False)):
            name = f"{self.name}/{number}"
            length = num_tokens(self.question_tokens, rng, at_least=0 if prefix.num_tokens else 1)
            prompt = prefix.then(f"{name}/question", length)
            for sample in range(self.num_samples):
                answer = num_tokens(self.answer_tokens, rng)
                yield Turn(
                    arrival_time=start,
                    transcript=prompt.then(f"{name}/answer/{sample}", answer, role="assistant"),
                    label=self.name,
                )

    def _prefixes(self, rng: random.Random) -> Iterator[Transcript]:
        levels = [
            (
                Shelf(
                    f"{self.name}/{depth}", level.tokens, seed=rng.getrandbits(64), role=level.role
                ),
                level.texts.draws(rng),
            )
            for depth, level in enumerate(self.levels)
        ]
        while True:
            prefix = EMPTY
            for shelf, numbers in levels:
                prefix = shelf.after(prefix, next(numbers))
            yield prefix


DOCUMENTS = SharedPrefix(
    name="documents",
    levels=(
        Level(texts=Zipf(1), tokens=Constant(100)),
        Level(texts=Zipf(100), tokens=Lognormal(12_000, 8_000), role="user"),
    ),
    question_tokens=Lognormal(40, 30),
    answer_tokens=Lognormal(120, 100),
)
"""Many questions on few long documents. The numbers are ours."""

FEW_SHOT = SharedPrefix(
    name="few-shot",
    levels=(Level(texts=Zipf(20), tokens=Uniform(1000, 4000)),),
    question_tokens=Lognormal(150, 100),
    answer_tokens=Uniform(1, 32),
)
"""A task's examples, then one more case. The numbers are ours."""

PARALLEL_SAMPLES = SharedPrefix(
    name="samples",
    levels=(Level(texts=Zipf(1), tokens=Constant(800)),),
    question_tokens=Lognormal(600, 300),
    answer_tokens=Lognormal(400, 300),
    num_samples=8,
)
"""Eight answers to each problem. The numbers are ours."""
