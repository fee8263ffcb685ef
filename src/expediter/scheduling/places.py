"""Where each request is: waiting without slots, holding them until its KV comes, or running."""

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

from expediter.kvcache.manager import KVCacheManager
from expediter.request import KVFlow
from expediter.scheduling.decodes import Decodes
from expediter.scheduling.handover import Admission
from expediter.scheduling.state import RequestState
from expediter.scheduling.waiting import WaitingQueue

if TYPE_CHECKING:
    from expediter.request import RequestId


_by_rank = attrgetter("rank")


class Places:
    """Moves requests; each is in one place. `running` is oldest first.

    `is_memory_full` says that admission failed and that nothing has been released since.
    `num_waiting` is what the queue would say of itself, which is asked in every step.
    """

    def __init__(self, waiting: WaitingQueue, *, kv_cache: KVCacheManager) -> None:
        self.waiting = waiting
        self.receiving: dict[RequestId, RequestState] = {}
        self.running: list[RequestState] = []
        self.decodes = Decodes()  # of those that run
        self.admissions: list[Admission] = []
        self.preempted: list[RequestId] = []  # of those that send KV
        self.num_waiting = 0
        self.num_waiting_tokens = 0
        self.is_memory_full = False
        self._kv_cache = kv_cache

    @property
    def num_admitted(self) -> int:
        """Requests that hold slots."""
        return len(self.running) + len(self.receiving)

    def wait(self, state: RequestState) -> None:
        """From anywhere, with no slots, into the queue."""
        if state.was_admitted and state.request.kv_flow is KVFlow.SENDS:
            self.preempted.append(state.request_id)
        self.waiting.add(state)
        self.num_waiting += 1
        self.num_waiting_tokens += state.sequence.num_tokens
        self.is_memory_full = False

    def take(self, state: RequestState) -> None:
        """Out of the queue, having slots now."""
        self.waiting.take(state)
        self.num_waiting -= 1
        self.num_waiting_tokens -= state.sequence.num_tokens

    def run(self, state: RequestState) -> None:
        """Into the batch."""
        running = self.running
        if running and running[-1].rank > state.rank:
            insort(running, state, key=_by_rank)
        else:
            running.append(state)
        state.is_running = True
        self.decodes.add(state)

    def begin(self, state: RequestState, *, now: float) -> bool:
        """The first time it has slots; true if it has to wait for KV with them.

        Whoever hands KV over is announced, its slots pinned for the transfer.
        """
        state.was_admitted = True
        state.num_cached_tokens = state.num_computed_tokens
        state.scheduled_time = now
        self._kv_cache.count_lookup(
            num_queried_tokens=state.num_prompt_tokens, num_hit_tokens=state.num_cached_tokens
        )
        flow = state.request.kv_flow
        if flow is not KVFlow.LOCAL:
            self.admissions.append(Admission.of(state, self._kv_cache.pin(state.sequence)))
        if flow is KVFlow.RECEIVES:
            self.receiving[state.request_id] = state
        return flow is KVFlow.RECEIVES

    def join(self, state: RequestState) -> None:
        """From waiting for KV into the batch."""
        del self.receiving[state.request_id]
        self.is_memory_full = False  # a waiting prompt may share what came
        self.run(state)

    def release(self, state: RequestState) -> None:
        """Take a request's slots away, and itself from where it held them."""
        if state.is_running:
            self.running.remove(state)
            self.decodes.remove(state)
            state.is_running = False
        else:
            del self.receiving[state.request_id]
        self._kv_cache.free(state.sequence)
        self.is_memory_full = False

    def drop(self, state: RequestState) -> None:
        """Out of wherever it is."""
        if state.is_running or state.request_id in self.receiving:
            self.release(state)
            return
        self.waiting.remove(state)
        self.num_waiting -= 1
        self.num_waiting_tokens -= state.num_tokens
        self.is_memory_full = False
