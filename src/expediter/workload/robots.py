"""Robots that ask what to do next, at a fixed rate."""

import random
from collections.abc import Iterable, Iterator

from expediter.config import Positive, Section
from expediter.workload.distributions import AboveZero, Constant, Distribution, Zipf, num_tokens
from expediter.workload.shelf import Shelf
from expediter.workload.streams import overlapping
from expediter.workload.transcript import EMPTY, Transcript
from expediter.workload.turn import Turn


class Robots(Section, frozen=True, kw_only=True, tag="robots"):
    """A prefix that stays and a camera frame that never comes twice; a short action in answer.

    Frames do not wait for answers. `prefix` texts are shared by all robots that do the same.
    """

    name: str = "robots"
    prefixes: Zipf = Zipf(1)
    prefix_tokens: Distribution = Constant(1500)
    frame_tokens: Distribution = Constant(576)
    action_tokens: Distribution = Constant(8)
    frames_per_second: AboveZero = 2.0
    num_frames: Positive = 600

    def turns(self, starts: Iterable[float], *, rng: random.Random) -> Iterator[Turn]:
        """One robot for each start, sending `num_frames` frames from then on."""
        shelf = Shelf(f"{self.name}/prefix", self.prefix_tokens, seed=rng.getrandbits(64))
        tasks = enumerate(zip(starts, self.prefixes.draws(rng), strict=False))
        robots = (
            (
                start,
                self._robot(f"{self.name}/{n}", shelf.after(EMPTY, prefix), start=start, rng=rng),
            )
            for n, (start, prefix) in tasks
        )
        return overlapping(robots)

    def _robot(
        self, session: str, prefix: Transcript, *, start: float, rng: random.Random
    ) -> Iterator[Turn]:
        for frame in range(self.num_frames):
            name = f"{session}/{frame}"
            prompt = prefix.then(f"{name}/frame", num_tokens(self.frame_tokens, rng))
            yield Turn(
                arrival_time=start + frame / self.frames_per_second,
                transcript=prompt.then(
                    f"{name}/action", num_tokens(self.action_tokens, rng), role="assistant"
                ),
                label=self.name,
                session=session,
            )
