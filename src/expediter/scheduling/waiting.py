"""Who is admitted next.

A waiting queue yields requests in the order they should join the batch; the scheduler takes
as many as memory and budget allow, and stops at the first that memory cannot hold, so a large
request is never passed by smaller ones for its size. Requests that were preempted come first,
oldest first: they were chosen once already. Only `Priority` keeps them in its own order.

| order | can a request wait for ever? |
|---|---|
| `Fcfs` | no: only older ones go before it |
| `LongestPrefix` | no: the oldest is passed by so many, then it is next |
| `PrefixQuotas` | no: every group has its turn, see `quotas.py` |
| `Priority` | yes, by design: while more urgent ones keep coming; there is no aging |
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from expediter.kvcache.manager import KVCacheManager
from expediter.scheduling.state import RequestState

if TYPE_CHECKING:
    from expediter.request import RequestId

_by_rank = attrgetter("rank")


class WaitingQueue(Protocol):
    """Requests that hold no blocks, in some order."""

    def __len__(self) -> int:
        """How many requests wait."""
        ...

    def add(self, state: RequestState) -> None:
        """Let a request wait; called in order of arrival, or with one that was preempted."""
        ...

    def remove(self, state: RequestState) -> None:
        """Forget a request that was aborted."""
        ...

    def take(self, state: RequestState) -> None:
        """Forget a candidate that was admitted, and count it where the order keeps count."""
        ...

    def candidates(self) -> Iterator[RequestState]:
        """The requests in order of admission; each may be taken before the next is asked for.

        One that is not is passed over in this batch and keeps its place.
        """
        ...


class Fcfs:
    """First come, first served."""

    def __init__(self) -> None:
        self._preempted: list[RequestState] = []
        self._new: dict[RequestId, RequestState] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._preempted) + len(self._new)

    def add(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        if state.was_admitted:
            insort(self._preempted, state, key=_by_rank)
        else:
            self._new[state.request_id] = state

    def remove(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        if state.was_admitted:
            self._preempted.remove(state)
        else:
            del self._new[state.request_id]

    def take(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        self.remove(state)

    def candidates(self) -> Iterator[RequestState]:
        """See `WaitingQueue`."""
        return self._all_candidates() if self._preempted else self._new_candidates()

    def _all_candidates(self) -> Iterator[RequestState]:
        yield from self._preempted[:]
        yield from self._new_candidates()

    def _new_candidates(self) -> Iterator[RequestState]:
        return iter(list(self._new.values()))


class LongestPrefix(Fcfs):
    """Most cached prompt tokens first; ties, and long queues, first come first served.

    With more than `max_waiting` new requests in the queue it is `Fcfs`, as SGLang does
    (managers/schedule_policy.py): then order matters less than the cost of finding it. What
    SGLang does not do: once `max_waiting` others were taken before the oldest request, the
    oldest is next. So a request with `a` older ones before it is taken after at most
    (a + 1) * (max_waiting + max_running) others.
    """

    def __init__(self, *, kv_cache: KVCacheManager, max_waiting: int) -> None:
        super().__init__()
        self._kv_cache = kv_cache
        self._max_waiting = max_waiting
        self._num_passed = 0  # taken before the request that is the oldest now

    def remove(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        if state is self._oldest():
            self._num_passed = 0
        super().remove(state)

    def take(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        if not state.was_admitted:
            self._num_passed += 1
        self.remove(state)

    def _new_candidates(self) -> Iterator[RequestState]:
        states = list(self._new.values())
        if len(states) <= self._max_waiting:
            first = states[:1] if self._num_passed >= self._max_waiting else []
            rest = states[len(first) :]
            states = first + sorted(rest, key=self._num_missing)
        return iter(states)

    def _num_missing(self, state: RequestState) -> int:
        return -self._kv_cache.num_cached_tokens(state.sequence)

    def _oldest(self) -> RequestState | None:
        return next(iter(self._new.values()), None)


class Priority:
    """The smallest `priority` first, as in vLLM; first come first served among equals."""

    def __init__(self) -> None:
        self._states: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._states)

    def add(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        insort(self._states, state, key=_by_rank)

    def remove(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        del self._states[bisect_left(self._states, state.rank, key=_by_rank)]

    def take(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        self.remove(state)

    def candidates(self) -> Iterator[RequestState]:
        """See `WaitingQueue`."""
        return iter(self._states[:])
