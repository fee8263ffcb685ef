"""Which tokens run next.

There is no prefill phase and no decode phase, only tokens still to compute. Each step has a
budget of tokens, spent in this order (Sarathi-Serve, OSDI'24): requests with one token to
compute, then the rest of prompts already begun, then waiting requests while memory and
budget last. Slots for a whole prompt are taken when it is admitted, so only generated tokens
ever need more; when there are none the newest request gives up its blocks and waits to
compute them again, from whatever of them is still cached.

Two rules keep work from being wasted. Admission leaves one free block for every running
request, else the next decode would undo it. And a waiting request whose next block is being
computed by another in this very step waits a step for it rather than compute it as well.

The oldest running request is never preempted, and no request is accepted that could not run
alone, so whatever is admitted finishes. (With priorities the most urgent counts as oldest; a
less urgent one may then be preempted as long as more urgent ones come.)
"""

import logging
from collections.abc import Sequence

from expediter.clock import Clock
from expediter.config import SchedulerConfig
from expediter.kvcache.manager import KVCacheManager
from expediter.kvcache.pin import Pin
from expediter.load import WorkerLoad
from expediter.request import Request, RequestId, RequestOutput, SampledToken
from expediter.scheduling.handover import Admission
from expediter.scheduling.horizon import advance, num_safe_steps
from expediter.scheduling.limits import check_fits
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.scheduling.places import Places
from expediter.scheduling.policy import waiting_queue
from expediter.scheduling.state import RequestState
from expediter.scheduling.step import Step

logger = logging.getLogger(__name__)


class Scheduler:
    """One worker's requests. `schedule` and `update` alternate; the rest may come at any time."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        kv_cache: KVCacheManager,
        clock: Clock,
        max_model_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        has_chunks: bool = True,
    ) -> None:
        """`has_chunks` is false for an executor that needs to know only how much a step is."""
        self.kv_cache = kv_cache
        self.num_preemptions = 0
        self._config = config
        self._is_chunked = config.chunked_prefill
        self._clock = clock
        self._max_model_len = max_model_len
        self._eos_token_ids = eos_token_ids
        self._has_chunks = has_chunks
        # Every running request must be able to decode in every step.
        self._max_running = min(config.max_running, config.max_batched_tokens)
        self._states: dict[RequestId, RequestState] = {}
        self._places = places = Places(waiting_queue(config, kv_cache), kv_cache=kv_cache)
        self._running, self._decodes = places.running, places.decodes
        self._waiting = places.waiting
        self._step = Step(budget=0, block_size=kv_cache.block_size)  # the newest
        self._num_added = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._states)

    def load(self) -> WorkerLoad:
        """How busy this worker is now."""
        unfinished = sum(s.num_remaining_tokens for s in self._decodes.begun if not s.is_decode)
        return WorkerLoad(
            num_running=len(self._running),
            num_waiting=self._places.num_waiting + len(self._places.receiving),
            num_waiting_prefill_tokens=self._places.num_waiting_tokens + unfinished,
            num_used_blocks=self.kv_cache.num_used_blocks,
            num_total_blocks=self.kv_cache.num_total_blocks,
        )

    def add(self, request: Request) -> None:
        """Let a request wait; `PromptTooLong` if it can never run, `ValueError` for a known id."""
        if request.request_id in self._states:
            raise ValueError(f"request {request.request_id} is already here")
        check_fits(request, max_model_len=self._max_model_len, kv_cache=self.kv_cache)
        self._num_added += 1
        urgency = request.priority if self._config.policy == "priority" else 0
        state = RequestState(
            request,
            sequence=self.kv_cache.open(request),
            serial=self._num_added,
            rank=(urgency, self._num_added),
            eos_token_ids=self._eos_token_ids,
        )
        self._states[request.request_id] = state
        self._places.wait(state)

    def abort(self, request_id: RequestId) -> bool:
        """Drop a request and free its blocks; False if it is not here.

        Safe while a step runs: the next `schedule` is the first to reuse what it held.
        """
        state = self._states.pop(request_id, None)
        if state is None:
            return False
        self._places.drop(state)
        return True

    def take_admissions(self) -> list[Admission]:
        """Requests that hand KV over and got their slots since the last call."""
        taken, self._places.admissions = self._places.admissions, []
        return taken

    def take_preempted(self) -> list[RequestId]:
        """Senders that lost their slots since the last call: they compute into others, if ever."""
        taken, self._places.preempted = self._places.preempted, []
        return taken

    def let_go(self, pin: Pin) -> None:
        """Nobody reads or writes a request's blocks from outside any more; safe to repeat."""
        self.kv_cache.unpin(pin)
        self._places.is_memory_full = False

    def receive_token(
        self, request_id: RequestId, token: SampledToken, *, num_cached_tokens: int
    ) -> RequestOutput | None:
        """The first token, from the worker that sends the KV; None if the request is gone.

        `num_cached_tokens` is what that one had cached. The request may end with this token.
        """
        state = self._places.receiving.get(request_id)
        if state is None:
            return None
        state.sequence.append([token])
        state.num_cached_tokens = num_cached_tokens
        return self._output(state, [token])

    def resume(
        self, request_id: RequestId, *, num_tokens: int, num_cached_tokens: int | None = None
    ) -> None:
        """The KV of the first `num_tokens` has come, and no more will: compute the rest.

        `num_cached_tokens` is what the sender had cached. Nothing happens if the request is gone.
        """
        state = self._places.receiving.get(request_id)
        if state is None:
            return
        if num_cached_tokens is not None:
            state.num_cached_tokens = num_cached_tokens
        self.kv_cache.publish(state.sequence, num_tokens)
        state.num_computed_tokens = max(state.num_computed_tokens, num_tokens)
        if self.kv_cache.allocate_slots(state.sequence, state.num_tokens):
            self._places.join(state)
        else:
            self._give_up_slots(state)

    def schedule(self) -> SchedulerOutput | None:
        """The next step; None when nothing can run now."""
        step = Step(budget=self._config.max_batched_tokens, block_size=self.kv_cache.block_size)
        self._schedule_decodes(step)
        if len(step.decodes) < len(self._running):
            self._schedule_prefills(step)
        if self._places.num_waiting and not self._places.is_memory_full:
            self._schedule_waiting(step)
        if not (step.decodes or step.prefills):
            return None
        self._step = step
        return step.output(max_steps=self._max_steps(step), has_chunks=self._has_chunks)

    def update(self, output: SchedulerOutput, result: ModelOutput) -> list[RequestOutput]:
        """Take in the results of the newest step; what requests gained, and which ended."""
        assert result.num_steps <= output.max_steps, "ran further than was safe"
        step, tokens = self._step, result.tokens
        gained = advance(step, result, kv_cache=self.kv_cache, decodes=self._decodes)
        if step.prefills:
            gained += self._end_prefills(result)
        return [self._output(state, tokens[state.request_id]) for state in gained]

    def _end_prefills(self, result: ModelOutput) -> list[RequestState]:
        """Take in the prompts' chunks; the requests that have a token of their own now."""
        sampled = []
        for state, num_new_tokens in self._step.prefills:
            if not state.is_running:
                continue
            state.num_computed_tokens += num_new_tokens
            self.kv_cache.publish(state.sequence, state.num_computed_tokens)
            self._places.is_memory_full = False  # a waiting prompt may share what was computed
            if state.num_computed_tokens == state.num_tokens:
                state.sequence.append(result.tokens[state.request_id])
                sampled.append(state)
        return sampled

    def _schedule_decodes(self, step: Step) -> None:
        decodes = self._decodes
        if decodes.begun or decodes.edge:
            self._find_slots(step)
        if decodes.members:
            step.add_decodes(self._running, decodes)

    def _find_slots(self, step: Step) -> None:
        block_size = self.kv_cache.block_size
        for state in self._decodes.take_due():
            sequence = state.sequence
            has_slot = sequence.num_tokens <= len(sequence.block_ids) * block_size
            if state.is_running and (has_slot or self._find_slot(state)):
                step.ends_prompt |= state.num_computed_tokens < state.num_prompt_tokens

    def _find_slot(self, state: RequestState) -> bool:
        """Room for the newest token, taken from the newest requests if need be."""
        while not self.kv_cache.allocate_slots(state.sequence, state.num_tokens):
            # Whoever comes after `state` has not been scheduled in this step yet.
            victim = self._running[-1]
            self._preempt(victim)
            if victim is state:
                return False
        return True

    def _preempt(self, state: RequestState) -> None:
        logger.info("%s is preempted at %d tokens", state.request_id, state.num_tokens)
        self.num_preemptions += 1
        self._give_up_slots(state)

    def _give_up_slots(self, state: RequestState) -> None:
        self._places.release(state)
        state.num_computed_tokens = 0
        self._places.wait(state)

    def _schedule_prefills(self, step: Step) -> None:
        for state in self._running:
            if not state.is_decode and step.budget > 0:
                step.add_prefill(state, min(state.num_remaining_tokens, step.budget))

    def _schedule_waiting(self, step: Step) -> None:
        if not self._has_room(step):
            return
        for state in self._waiting.candidates():
            if step.prefills and self._is_underway(state, step):
                continue
            if not self._admit(state, step) or not self._has_room(step):
                return

    def _has_room(self, step: Step) -> bool:
        return step.budget > 0 and self._places.num_admitted < self._max_running

    def _is_underway(self, state: RequestState, step: Step) -> bool:
        """Whether another request computes, in this step, the block this one needs next."""
        return step.is_underway(state, self.kv_cache.num_cached_tokens(state.sequence))

    def _admit(self, state: RequestState, step: Step) -> bool:
        """Move a waiting request into the batch; False if memory or budget is against it."""
        if not (self._is_chunked or self._fits_whole(state, step)):
            return False
        num_cached = self.kv_cache.admit(state.sequence, headroom=len(self._running))
        if num_cached is None:
            self._places.is_memory_full = True
            return False
        self._places.take(state)
        state.num_computed_tokens = num_cached
        if not state.was_admitted and self._places.begin(state, now=self._clock()):
            return True
        self._places.run(state)
        num_new = state.num_remaining_tokens
        step.add_prefill(state, min(num_new, step.budget) if self._is_chunked else num_new)
        return True

    def _fits_whole(self, state: RequestState, step: Step) -> bool:
        """Without chunks, a step takes whole prompts: any first one, then what budget is left."""
        num_new = state.num_tokens - self.kv_cache.num_cached_tokens(state.sequence)
        return num_new <= step.budget or not step.prefills

    def _max_steps(self, step: Step) -> int:
        if step.prefills or step.ends_prompt or (self._places.num_waiting and not self._is_full):
            return 1
        return num_safe_steps(
            step.decodes,
            longest=step.longest,
            num_free_blocks=self.kv_cache.num_free_blocks,
            block_size=self.kv_cache.block_size,
        )

    @property
    def _is_full(self) -> bool:
        return self._places.is_memory_full or self._places.num_admitted >= self._max_running

    def _output(self, state: RequestState, tokens: Sequence[SampledToken]) -> RequestOutput:
        """What a request gained; one that ended is gone then."""
        reason = state.finish_reason(tokens[-1])
        if reason is not None:
            self._places.release(state)
            del self._states[state.request_id]
        return state.output(tokens, reason)
