"""Who is admitted next.

A waiting queue yields requests in the order they should join the batch; the scheduler takes
as many as memory and budget allow. Requests that were preempted come first, oldest first:
they were chosen once already.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from expediter.scheduling.state import RequestState

if TYPE_CHECKING:
    from expediter.request import RequestId


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
        self._preempted: dict[RequestId, RequestState] = {}
        self._new: dict[RequestId, RequestState] = {}

    def __len__(self) -> int:
        return len(self._preempted) + len(self._new)

    def add(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        queue = self._new if state.num_cached_tokens is None else self._preempted
        queue[state.request_id] = state

    def remove(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        queue = self._new if state.request_id in self._new else self._preempted
        del queue[state.request_id]

    def take(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        self.remove(state)

    def candidates(self) -> Iterator[RequestState]:
        """See `WaitingQueue`."""
        yield from sorted(self._preempted.values(), key=lambda state: state.serial)
        yield from list(self._new.values())
