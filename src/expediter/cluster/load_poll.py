"""Asks workers in the background how busy they are.

What the gateway has sent is counted here at once, and better than a worker could tell. What only
the worker knows is the work that others send it: what it reports beyond what is in flight from
here. A request may be on its way while the worker is asked, so the larger of the counts before
and after is what is ours. A report that is too old counts for nothing.
"""

import asyncio
from collections.abc import Callable

from expediter.clock import Clock
from expediter.cluster.member import Member, WorkerStatus
from expediter.cluster.worker_metrics import parse_load
from expediter.config import HealthConfig
from expediter.errors import ClusterError
from expediter.load import WorkerId

CountOf = Callable[[WorkerId], int]

NUM_SILENT_TO_REST = 3  # pages without a load, after which a worker is asked less often
REST_SECONDS = 60.0


class LoadPoll:
    """Keeps `load` and `num_others` of members up to date."""

    def __init__(
        self, config: HealthConfig, *, clock: Clock, learnt: Callable[[Member], None]
    ) -> None:
        """`learnt` is called when a worker has told how much memory it has."""
        self._interval = config.load_interval_seconds
        self._stale_seconds = config.load_stale_seconds
        self._clock = clock
        self._learnt = learnt
        self.num_known: CountOf = lambda _: 0

    async def follow(self, member: Member) -> None:
        """Ask a worker until cancelled; without an interval, never."""
        if not self._interval:
            return
        reported_at, num_silent = self._clock(), 0
        while True:
            if member.health is WorkerStatus.UP:
                if await self._ask(member):
                    reported_at, num_silent = self._clock(), 0
                else:
                    num_silent += 1
            else:
                num_silent = 0
            if self._clock() - reported_at > self._stale_seconds:
                member.forget_load()
            rests = num_silent >= NUM_SILENT_TO_REST and member.load is None
            await asyncio.sleep(REST_SECONDS if rests else self._interval)

    async def _ask(self, member: Member) -> bool:
        """Whether the worker told its load."""
        before = self.num_known(member.worker_id)
        try:
            status, page = await member.client.fetch("/metrics", timeout=self._stale_seconds)
        except ClusterError:
            return False  # probes and requests judge workers
        load = parse_load(page) if status == 200 else None
        if load is None or member.health is not WorkerStatus.UP:
            return False
        is_news = load.capacity_tokens != member.capacity_tokens
        member.load = load
        num_known = max(before, self.num_known(member.worker_id))
        member.num_others = max(0, load.num_requests - num_known)
        if is_news:
            self._learnt(member)
        return True
