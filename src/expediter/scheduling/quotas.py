"""Preble's fair waiting order: a share of every batch for each degree of cachedness.

Requests are put into P groups by how much of their prompt is cached, and a batch takes from
the groups in proportion to their numbers (Preble, ICLR'25, section 3.3). The paper's two
examples fix the numbering: with P = 10 a prompt that is 63 % cached is in group 6, and 55
slots are 10 from group 10, 9 from group 9, down to 1 from group 1. So the group is
floor(cached * P), except that what the formula calls group 0 joins group 1; the paper gives
it no slots, and it would starve. A prompt counts as wholly cached when all of it is that can
be: its last token never is.

Batches of a running engine have one or two free slots, so proportions must hold across
batches. Each group has a `pass`, the time of its next turn; a turn of group g moves it 1/g
ahead, and the group with the earliest pass is next (stride scheduling, Waldspurger and Weihl
1995; passes are whole numbers, in units of 1/lcm(1..P)). A group that was empty resumes at
the present.

No request starves. Between two turns of group g, group h has at most floor(h/g) + 1, so a
group that has requests waits for at most B - 1 turns of others, B = P(P+1)/2 + P - 1 (the
sum for g = 1, the worst). A waiting request's group never falls, even if what was cached is
evicted, so it rises at most P - 1 times; each turn of the group it is in takes it or an older
one. With `a` older requests it is therefore taken within (a + P) * B turns. Requests that
come back from preemption, and those passed over because another is computing what they need,
do not count as turns.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from math import lcm
from typing import TYPE_CHECKING

from expediter.kvcache.manager import KVCacheManager
from expediter.scheduling.state import RequestState
from expediter.scheduling.waiting import Fcfs

if TYPE_CHECKING:
    from expediter.request import RequestId


class PrefixQuotas(Fcfs):
    """Groups 1 to `num_groups` share batches in proportion to their numbers."""

    def __init__(self, *, kv_cache: KVCacheManager, num_groups: int) -> None:
        super().__init__()
        self._kv_cache = kv_cache
        self._num_groups = num_groups
        self._group_of: dict[RequestId, int] = {}
        self._second = lcm(*range(1, num_groups + 1))  # a turn of group 1, in units of pass
        self._pass = [0] * (num_groups + 1)
        self._now = 0  # the pass of the latest turn

    def remove(self, state: RequestState) -> None:
        """See `WaitingQueue`."""
        super().remove(state)
        self._group_of.pop(state.request_id, None)

    def take(self, state: RequestState) -> None:
        """See `WaitingQueue`; the turn is its group's."""
        group = self._group_of.get(state.request_id)
        if group is not None:
            self._now = self._pass[group]
            self._pass[group] += self._second // group
        self.remove(state)

    def group(self, state: RequestState) -> int:
        """The state's group by what is cached now, or an earlier, higher one."""
        num_cached = self._kv_cache.num_cached_tokens(state.sequence)
        now = num_cached * self._num_groups // state.num_prompt_tokens
        if 0 < num_cached == self._kv_cache.max_cached_tokens(state.sequence):
            now = self._num_groups
        group = max(1, now, self._group_of.get(state.request_id, 1))
        self._group_of[state.request_id] = group
        return group

    def _new_candidates(self) -> Iterator[RequestState]:
        groups: dict[int, deque[RequestState]] = {}
        for state in self._new.values():
            groups.setdefault(self.group(state), deque()).append(state)
        for group in groups:
            self._pass[group] = max(self._pass[group], self._now)
        turns = [(self._pass[group], -group) for group in groups]
        heapify(turns)
        while turns:
            group = -turns[0][1]
            yield groups[group].popleft()
            if groups[group]:
                heapreplace(turns, (self._pass[group], -group))
            else:
                heappop(turns)
