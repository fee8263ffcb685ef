"""A model that only takes time.

A batch of decodes that nothing can change for `max_steps` steps is slept through in one jump. Its
context grows by a token a request and step, so a step's time is taken to change evenly from the
first to the last: exact for models that are linear in context, and all are nearly so. Whoever
hands the worker something new calls `interrupt`, and the jump ends with the step that is running
then, which is when a real worker would look.
"""

import asyncio
import math
from functools import lru_cache

from expediter.cluster.errand import Pause
from expediter.request import RequestId, SampledToken
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.simulation.costs import CostModel

TOKEN = SampledToken(token_id=0)
_EPSILON = 1e-9  # seconds: an arrival on the end of a step is before the next


class Pipeline:
    """Stages that the passes of several workers go through one behind the other.

    A pass takes its whole time in the end, but another may enter when it has left the first of
    `num_stages`. (As vLLM ran pipelines: a scheduler with its part of the cache for each batch.)
    """

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self._is_free_at = 0.0

    async def enter(self, seconds: float) -> None:
        """Wait for the first stage, and take it for a pass of so many seconds."""
        loop = asyncio.get_running_loop()
        start = max(loop.time(), self._is_free_at)
        self._is_free_at = start + seconds / self._num_stages
        if start > loop.time():
            await asyncio.sleep(start - loop.time())


class SimulatedExecutor:
    """Sleeps what `cost` says. Counts steps, not tokens."""

    def __init__(self, cost: CostModel, *, pipeline: Pipeline | None = None) -> None:
        self._cost = cost
        self._pipeline = pipeline
        self._jump: _Jump | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # asked for once: it is a system call
        self._slowdown = 1.0
        self.num_steps = 0
        self.num_jumps = 0
        self.busy_seconds = 0.0
        self.num_prompt_tokens = 0

    async def execute(self, output: SchedulerOutput) -> ModelOutput:
        """See `Executor`; every sampled token is the same one."""
        work, max_steps, cost = output.work, output.max_steps, self._cost
        if self._pipeline is not None:
            await self._pipeline.enter(cost.seconds(work) * self._slowdown)
        first, growth = cost.seconds(work) * self._slowdown, 0.0
        if max_steps > 1:
            last = cost.seconds(work.later(max_steps - 1)) * self._slowdown
            growth = (last - first) / (max_steps - 1)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._jump = jump = _Jump(self._loop.time(), first, growth, max_steps)
        self._timer = self._loop.call_at(jump.started + jump.duration, jump.end)
        try:
            await jump
        except BaseException:
            self._timer.cancel()
            raise
        finally:
            self._jump = None
        num_steps = jump.num_steps
        self.num_steps += num_steps
        self.num_jumps += 1
        self.busy_seconds += jump.duration
        if work.chunks:
            self.num_prompt_tokens += work.num_prompt_tokens
        return _model_output(num_steps)

    @property
    def step_ends_at(self) -> float | None:
        """When what runs now will be over, as things stand; None if nothing runs."""
        return None if self._jump is None else self._jump.started + self._jump.duration

    def interrupt(self) -> None:
        """Something arrived: stop after the step that runs now."""
        jump, loop = self._jump, self._loop
        if jump is not None and loop is not None and jump.cut(loop.time()):
            self._timer.cancel()
            self._timer = loop.call_at(jump.started + jump.duration, jump.end)

    def slow_down(self, factor: float) -> None:
        """From the next step on, steps take `factor` times as long as before."""
        self._slowdown *= factor
        self.interrupt()

    async def close(self) -> None:
        """There is nothing to release."""


class _Jump(Pause):
    """Steps slept through as one, for `duration`; the first takes `first`, each later one more."""

    __slots__ = ("_first", "_growth", "duration", "num_steps", "started")

    def __init__(self, started: float, first: float, growth: float, num_steps: int) -> None:
        self.resume = None
        self.started = started
        self._first = first
        self._growth = growth
        self._run(num_steps)

    def cut(self, now: float) -> bool:
        """End with the step that is running now; False if that is the last anyway."""
        if self.num_steps == 1:
            return False
        elapsed, num_steps = now - self.started - _EPSILON, 1  # the least whose time is not over
        if elapsed > self._first:
            # g k^2 / 2 + (f - g / 2) k = elapsed, solved without cancellation
            half = self._first - self._growth / 2
            root = math.sqrt(max(0.0, half * half + 2 * self._growth * elapsed))
            num_steps = max(1, math.ceil(2 * elapsed / (half + root)))
        if num_steps >= self.num_steps:
            return False
        self._run(num_steps)
        return True

    def _run(self, num_steps: int) -> None:
        """End after so many."""
        self.num_steps = num_steps
        self.duration = num_steps * self._first + self._growth * num_steps * (num_steps - 1) / 2


class _SameTokens(dict[RequestId, list[SampledToken]]):
    """Gives every request the same new tokens."""

    def __init__(self, num_tokens: int) -> None:
        self._tokens = [TOKEN] * num_tokens

    def __missing__(self, request_id: RequestId) -> list[SampledToken]:
        return self._tokens


@lru_cache(maxsize=1024)
def _model_output(num_steps: int) -> ModelOutput:
    """Nobody changes it, so it is made once."""
    return ModelOutput(tokens=_SameTokens(num_steps), num_steps=num_steps)
