"""Times the steps of a live worker from outside, one kind at a time.

A prompt alone with one token of output is a prefill. A batch of answers under way together, all
of them past their first token and none yet at its last, is as many decode steps as each has
tokens in that time; their prompts are put into the cache before, so that they start together.
Nothing else may use the worker meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from statistics import fmean, median

from expediter.bench.calibration_plan import CalibrationPlan
from expediter.bench.endpoint import Client, Model, refusal
from expediter.bench.fit import DecodePoint, PrefillPoint
from expediter.bench.reply import Reply
from expediter.bench.texts import completion
from expediter.errors import EndpointError
from expediter.workload.prose import Prose
from expediter.workload.transcript import EMPTY, Transcript

MIN_STEPS = 4
"""Fewer steps of a batch together are not counted."""


class Calibration:
    """Measures one worker; `overhead` seconds of every request are not the model's.

    `nonce` makes the texts new, so that nothing of an earlier calibration is cached.
    """

    def __init__(
        self,
        client: Client,
        *,
        model: Model,
        prose: Prose,
        plan: CalibrationPlan,
        nonce: str,
        overhead: float = 0.0,
    ) -> None:
        self._client = client
        self._model = model
        self._prose = prose
        self._plan = plan
        self._nonce = nonce
        self._overhead = overhead
        self._serial = 0

    @property
    def shapes(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """New and cached tokens of the prefills, batch and context of the decodes, that fit."""
        plan, limit = self._plan, self._model.max_model_len or 1 << 62
        margin = 1.1  # a text has about the number of tokens that was asked for
        prefills = [
            (new, cached)
            for new in plan.lengths
            for cached in plan.cached
            if margin * (new + cached) + 1 <= limit
        ]
        decodes = [
            (batch, context)
            for batch in plan.batches
            for context in plan.contexts
            if margin * context + plan.output_tokens <= limit
        ]
        return prefills, decodes

    async def run(
        self, on_shape: Callable[[], None] | None = None
    ) -> tuple[list[PrefillPoint], list[DecodePoint]]:
        """All points; a batch that the worker did not run together gives none."""
        prefills, decodes = self.shapes
        await self._answer(self._text(64), num_tokens=4)  # the first of all is slower
        prefill_points, decode_points = [], []
        for new, cached in prefills:
            prefill_points.append(await self._prefill(new, cached))
            if on_shape is not None:
                on_shape()
        for batch, context in decodes:
            if (point := await self._decode(batch, context)) is not None:
                decode_points.append(point)
            if on_shape is not None:
                on_shape()
        return prefill_points, decode_points

    async def _prefill(self, new: int, cached: int) -> PrefillPoint:
        """The median of some repetitions, each with a text of its own."""
        points = [await self._prefill_once(new, cached) for _ in range(self._plan.repeats)]
        return sorted(points, key=lambda point: point.seconds)[len(points) // 2]

    async def _prefill_once(self, new: int, cached: int) -> PrefillPoint:
        prefix, known = EMPTY, 0
        if cached:
            prefix = self._text(cached)
            known = _prompt_tokens(await self._answer(prefix, num_tokens=1))
        reply = await self._answer(self._text(new, after=prefix), num_tokens=1)
        assert reply.usage is not None
        assert reply.ttft is not None
        if reply.usage.cached_tokens is not None:
            known = reply.usage.cached_tokens
        return PrefillPoint(
            new_tokens=max(1, reply.usage.prompt_tokens - known),
            cached_tokens=known,
            seconds=max(1e-6, reply.ttft - self._overhead),
        )

    async def _decode(self, batch: int, context: int) -> DecodePoint | None:
        points = [await self._decode_once(batch, context) for _ in range(self._plan.repeats)]
        known = [point for point in points if point is not None]
        return sorted(known, key=lambda p: p.seconds)[len(known) // 2] if known else None

    async def _decode_once(self, batch: int, context: int) -> DecodePoint | None:
        texts = [self._text(context) for _ in range(batch)]
        for text in texts:
            await self._answer(text, num_tokens=1)
        asked = (self._answer(text, num_tokens=self._plan.output_tokens) for text in texts)
        return decode_point(await asyncio.gather(*asked))

    def _text(self, num_tokens: int, *, after: Transcript = EMPTY) -> Transcript:
        self._serial += 1
        return after.then(f"calibration {self._nonce} {self._serial}", num_tokens)

    async def _answer(self, text: Transcript, *, num_tokens: int) -> Reply:
        prompt = self._prose.text(text)
        reply = await self._client.send(completion(self._model.id, prompt, num_tokens))
        if not reply.is_complete:
            raise EndpointError(f"a request failed: {refusal(reply)}")
        if reply.usage is None or not reply.token_times:
            raise EndpointError("the endpoint does not stream answers with their usage")
        return reply


def decode_point(replies: Sequence[Reply]) -> DecodePoint | None:
    """The mean step while all of these were under way; None if they hardly were together."""
    begin = max(reply.token_times[0] for reply in replies)
    end = min(reply.token_times[-1] for reply in replies)
    steps, contexts = [], []
    for reply in replies:
        within = [(n, time) for n, time in enumerate(reply.token_times) if begin <= time <= end]
        if len(within) <= MIN_STEPS:
            return None
        (first, started), (last, ended) = within[0], within[-1]
        steps.append((ended - started) / (last - first))
        # The first token comes of the prompt, so the step that gives token n has n - 1 before it.
        contexts.append(_prompt_tokens(reply) + (first + last - 1) / 2)
    return DecodePoint(
        batch=len(replies), context_tokens=len(replies) * fmean(contexts), seconds=median(steps)
    )


def _prompt_tokens(reply: Reply) -> int:
    return reply.usage.prompt_tokens if reply.usage else 0
