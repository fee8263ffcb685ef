"""One API request at work: a sequence for each choice, and what each has to say.

Sinks leave what a step gave with its choice; whoever writes to the client takes it from there.
If the client is slower than the model, what waits is joined, so it never costs more than the
whole answer would.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from expediter.errors import EngineFailed, ExpediterError, TransferError, WorkerUnavailable
from expediter.request import FinishReason, KVFlow, Request, RequestId, RequestOutput
from expediter.worker.handover.legs import Leg
from expediter.worker.output import OutputDelta, OutputProcessor
from expediter.worker.prompts import Prompt
from expediter.worker.stats import SequenceTimer
from expediter.worker.worker import Worker

# Ends that are nobody's wish, and what to say of them.
FAILURES: Mapping[FinishReason, ExpediterError] = {
    FinishReason.ERROR: EngineFailed("the model failed while it computed this request"),
    FinishReason.ABORT: WorkerUnavailable("the server shut down before the answer was complete"),
}


class Choice:
    """One answer. `index` counts over prompts and then choices, as in OpenAI's API."""

    def __init__(
        self,
        request: Request,
        *,
        index: int,
        prompt: Prompt,
        processor: OutputProcessor,
        timer: SequenceTimer,
        leg: Leg | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.prompt = prompt
        self.leg = leg
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.was_taken = False  # whether anything was, ever
        self.is_finished = False
        self._processor = processor
        self._timer = timer
        self._news: list[OutputDelta] = []

    @property
    def request_id(self) -> RequestId:
        """Its name at the worker."""
        return self.request.request_id

    @property
    def has_news(self) -> bool:
        """Whether there is something to take."""
        return bool(self._news)

    def add(self, output: RequestOutput) -> OutputDelta:
        """Take in what a step gave; what it means for the client."""
        self._timer.record(output)
        self.num_cached_tokens = output.num_cached_tokens
        delta = self._processor.process(output)
        self.num_tokens += len(delta.token_ids)
        self._news.append(delta)
        return delta

    def finish(self, reason: FinishReason) -> None:
        """Nothing more will come."""
        self.is_finished = True
        self._timer.finish(reason)

    def take(self) -> OutputDelta:
        """Everything new since the last call, as one."""
        news, self._news = self._news, []
        self.was_taken = True
        return news[0] if len(news) == 1 else _join(news)


class Generation:
    """Submits the choices, collects from them, and stops them if nobody listens any more.

    When the first choice receives its prompt's KV, the others wait for its first token: from then
    on they find the prompt in the cache.
    """

    def __init__(self, worker: Worker, choices: Sequence[Choice], *, is_streamed: bool) -> None:
        self.choices = choices
        self.failure: ExpediterError | None = None
        self.was_abandoned = False
        self._worker = worker
        self._is_streamed = is_streamed
        self._changed = asyncio.Event()
        self._num_unfinished = len(choices)
        receives = choices[0].request.kv_flow is KVFlow.RECEIVES
        self._following = list(choices[1:]) if receives else []

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._num_unfinished == 0

    def start(self) -> None:
        """Submit every choice, or none: what the worker raises is raised here."""
        try:
            for choice in self.choices[: len(self.choices) - len(self._following)]:
                self._submit(choice)
        except ExpediterError:
            self.stop()
            raise

    async def wait(self) -> None:
        """Until there is news, if it is streamed, else until it is over."""
        await self._changed.wait()
        self._changed.clear()

    def abandon(self) -> None:
        """The client is gone."""
        self.was_abandoned = True
        self.stop()
        self._changed.set()

    def stop(self) -> None:
        """End what still runs and free its blocks."""
        for choice in self.choices:
            if not choice.is_finished:
                self._worker.abort(choice.request_id)
                self._finish(choice, FinishReason.ABORT)

    def _submit(self, choice: Choice) -> None:
        self._worker.submit(choice.request, partial(self._take_in, choice), leg=choice.leg)

    def _take_in(self, choice: Choice, output: RequestOutput) -> None:
        reason = output.finish_reason
        if reason is not None and reason in FAILURES:
            self._finish(choice, reason)
            self._fail(self._failure(choice, reason))
            return
        self._submit_following()
        delta = choice.add(output)
        if delta.must_abort:
            self._worker.abort(choice.request_id)
        if delta.finish_reason is not None:
            self._finish(choice, delta.finish_reason)
        if self._is_streamed or self.is_over:
            self._changed.set()

    def _submit_following(self) -> None:
        following, self._following = self._following, []
        try:
            for choice in following:
                self._submit(choice)
        except ExpediterError as error:
            self._fail(error)

    def _failure(self, choice: Choice, reason: FinishReason) -> ExpediterError:
        was_given_up = reason is FinishReason.ABORT and not self._worker.is_draining
        if was_given_up and choice.request.kv_flow is KVFlow.SENDS:
            return TransferError("the worker that this prompt was computed for went away")
        return FAILURES[reason]

    def _finish(self, choice: Choice, reason: FinishReason) -> None:
        choice.finish(reason)
        self._num_unfinished -= 1

    def _fail(self, error: ExpediterError) -> None:
        self.failure = error
        self.stop()
        self._changed.set()


def _join(news: Sequence[OutputDelta]) -> OutputDelta:
    last = news[-1] if news else OutputDelta()
    return OutputDelta(
        text="".join(delta.text for delta in news),
        token_ids=tuple(token_id for delta in news for token_id in delta.token_ids),
        logprobs=tuple(entry for delta in news for entry in delta.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
