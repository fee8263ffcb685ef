"""One replica's life: schedule, execute, update, deliver; sleep when there is nothing to do.

One coroutine runs the steps. Between two of them everything else may happen at once: a request
submitted while a step runs joins the next one, and an aborted one is dropped from it. There is
no thread, no clock and no polling here, so the same loop runs on a simulator's time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from expediter.errors import EngineLost, RequestError, WorkerUnavailable
from expediter.kvcache.events import KVCacheEvent
from expediter.kvcache.pin import Pin
from expediter.load import WorkerLoad
from expediter.request import FinishReason, Request, RequestId, RequestOutput, SampledToken
from expediter.scheduling.output import Executor, ModelOutput, SchedulerOutput
from expediter.scheduling.scheduler import Scheduler
from expediter.worker.handover.contract import Handover
from expediter.worker.handover.legs import Leg

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3  # in a row, before the worker calls itself unhealthy

Sink = Callable[[RequestOutput], None]
PublishEvents = Callable[[Sequence[KVCacheEvent]], None]


class Worker:
    """Requests in, outputs to their sinks, until drained.

    A sink is called on the event loop, between steps, and may submit and abort. Its last call
    carries a finish reason: the scheduler's, or ERROR if a step failed, or ABORT if the worker
    stopped. It is never called for a request that was aborted.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: Executor,
        publish: PublishEvents | None = None,
        handover: Handover | None = None,
    ) -> None:
        """Without a `handover` every request must be served here from its prompt to its end."""
        self.scheduler = scheduler
        self._executor = executor
        self._handover = handover
        if handover is not None:
            handover.bind(self)
        self.failure: EngineLost | None = None  # why it stopped by itself
        self._publish = publish
        self._sinks: dict[RequestId, Sink] = {}
        self._num_failed_steps = 0  # in a row
        self._is_draining = False
        self._is_stopped = False
        self._wake = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def is_healthy(self) -> bool:
        """Whether steps succeed and requests are taken; one good step heals."""
        return not self._is_draining and self._num_failed_steps < MAX_FAILED_STEPS

    @property
    def is_draining(self) -> bool:
        """Whether the worker takes no more requests."""
        return self._is_draining

    @property
    def hands_over(self) -> bool:
        """Whether KV can go to other workers and come from them."""
        return self._handover is not None

    def load(self) -> WorkerLoad:
        """How busy it is now."""
        return self.scheduler.load()

    def submit(self, request: Request, sink: Sink, *, leg: Leg | None = None) -> None:
        """Queue a request; `PromptTooLong` if it can never run, `WorkerUnavailable` if draining.

        With a `leg` its KV goes to another worker or comes from one; RequestError if it may not.
        """
        if self._is_draining:
            raise WorkerUnavailable("this worker is shutting down")
        self.scheduler.add(request)
        self._sinks[request.request_id] = sink
        if len(self._sinks) == 1:
            self._is_idle.clear()
        self._wake.set()
        if leg is not None:
            self._hand_over(request, leg)

    def abort(self, request_id: RequestId) -> bool:
        """Drop a request and free its blocks; False if it is not here."""
        was_here = self.scheduler.abort(request_id)
        self._forget(request_id)
        self._wake.set()  # its blocks may be what others wait for
        return was_here

    def open_sinks(self) -> list[Sink]:
        """Of the requests that have not ended."""
        return list(self._sinks.values())

    def receive_token(
        self, request_id: RequestId, token: SampledToken, *, num_cached_tokens: int
    ) -> None:
        """See `HandingWorker`."""
        output = self.scheduler.receive_token(
            request_id, token, num_cached_tokens=num_cached_tokens
        )
        if output is not None:
            self._deliver(output)
            self._wake.set()

    def resume(
        self, request_id: RequestId, *, num_tokens: int, num_cached_tokens: int | None = None
    ) -> None:
        """See `HandingWorker`."""
        self.scheduler.resume(
            request_id, num_tokens=num_tokens, num_cached_tokens=num_cached_tokens
        )
        self._wake.set()

    def let_go(self, pin: Pin) -> None:
        """See `HandingWorker`."""
        self.scheduler.let_go(pin)
        self._wake.set()

    def give_up(self, request_id: RequestId) -> None:
        """See `HandingWorker`. Its sink hears ABORT."""
        self._fail(request_id, FinishReason.ABORT)
        self._wake.set()

    def reset_prefix_cache(self) -> bool:
        """Forget every prefix; False while any request holds blocks."""
        is_reset = self.scheduler.kv_cache.reset_prefix_cache()
        self._publish_events()
        return is_reset

    def lose_engine(self, failure: EngineLost) -> None:
        """No step can run any more: take no more requests, end those here, end `run`."""
        self.failure = failure
        self._is_draining = True
        self._stop()

    async def run(self) -> None:
        """Run steps until `drain` is over or the engine is lost. Only one may run."""
        while True:
            output = self.scheduler.schedule()
            if self._handover is not None:
                self._prepare(self._handover, output)
            if output is not None:
                try:
                    result = await self._executor.execute(output)
                except EngineLost as failure:
                    self.lose_engine(failure)
                except Exception:
                    self._lose_step(output)
                else:
                    self._take_in(output, result)
            self._publish_events()
            if output is None:
                if self._is_stopped:
                    return
                await self._wake.wait()
                self._wake.clear()

    async def drain(self, seconds: float) -> None:
        """Take no more requests, let those here finish, fail what is left, end `run`."""
        self._is_draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()
                if self._handover is not None:
                    await self._handover.drained()
        except TimeoutError:
            logger.warning(
                "%d requests, or what is held for others, did not end in %s s",
                len(self._sinks),
                seconds,
            )
        self._stop()

    def _stop(self) -> None:
        """Fail what is left; steps end."""
        for request_id in list(self._sinks):
            self._fail(request_id, FinishReason.ABORT)
        self._is_stopped = True
        self._wake.set()

    def _prepare(self, handover: Handover, output: SchedulerOutput | None) -> None:
        """Tell who moves KV what was scheduled."""
        handover.preempted(self.scheduler.take_preempted())
        handover.admitted(self.scheduler.take_admissions())
        if output is not None:
            handover.step_begins(output)

    def _lose_step(self, output: SchedulerOutput) -> None:
        """Whatever the model throws, it costs this batch and nothing else."""
        self._num_failed_steps += 1
        # An executor that needs no chunks does not say whose they were: then it is everyone's.
        failed = [chunk.request_id for chunk in output.chunks] or list(self._sinks)
        logger.exception("a step failed, and %d requests with it", len(failed))
        for request_id in failed:
            self._fail(request_id, FinishReason.ERROR)

    def _take_in(self, output: SchedulerOutput, result: ModelOutput) -> None:
        self._num_failed_steps = 0
        results = self.scheduler.update(output, result)
        if self._handover is not None:
            self._handover.step_ended(results)
        for request_output in results:
            self._deliver(request_output)

    def _hand_over(self, request: Request, leg: Leg) -> None:
        """Tell who moves KV of a request; it is dropped if that cannot be."""
        assert self._handover is not None, "a leg for a worker that serves alone"
        try:
            self._handover.add(request, leg)
        except RequestError:
            self.abort(request.request_id)
            raise

    def _deliver(self, output: RequestOutput) -> None:
        sink = self._sinks.get(output.request_id)
        if sink is None:
            return  # an earlier sink of this step aborted it
        if output.finish_reason is not None:
            self._forget(output.request_id)
        try:
            sink(output)
        except Exception:
            # A reader's fault must not stop everybody else's answers.
            logger.exception("the sink of %s failed", output.request_id)
            self.abort(output.request_id)

    def _fail(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request that the scheduler did not; one that is gone already is left alone."""
        if self.scheduler.abort(request_id):
            failed = RequestOutput(
                request_id=request_id, tokens=(), num_cached_tokens=0, finish_reason=reason
            )
            self._deliver(failed)

    def _forget(self, request_id: RequestId) -> None:
        self._sinks.pop(request_id, None)
        if self._handover is not None:
            self._handover.drop(request_id)
        if not self._sinks:
            self._is_idle.set()

    def _publish_events(self) -> None:
        events = self.scheduler.kv_cache.take_events()
        if events and self._publish is not None:
            self._publish(events)
