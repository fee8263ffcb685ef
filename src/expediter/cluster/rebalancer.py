"""Moves workers between prefill and decode as the load asks for it; when, `roles.py` says.

A worker that changes its role gets no requests until those it has are done, or its time is up:
then what is left runs on, beside work of the other kind. One that takes both roles on, or goes
back from that, need not wait.
"""

import asyncio
import logging

from expediter.clock import Clock
from expediter.cluster.handover import Dialect
from expediter.cluster.member import WorkerStatus
from expediter.cluster.membership import Member, Membership
from expediter.cluster.roles import Change, RoleBalance, RolePlayer
from expediter.config import RebalanceConfig
from expediter.load import WorkerRole
from expediter.routing.outstanding import OutstandingWork

logger = logging.getLogger(__name__)


class Rebalancer:
    """One for a gateway; `run` watches until cancelled."""

    def __init__(
        self,
        config: RebalanceConfig,
        *,
        membership: Membership,
        work: OutstandingWork,
        clock: Clock,
    ) -> None:
        self._config = config
        self._membership = membership
        self._work = work
        self._clock = clock
        self._balance = RoleBalance(config)
        self.num_changes = 0

    async def run(self) -> None:
        """Look at the fleet at an interval, and make one change at a time."""
        while True:
            await asyncio.sleep(self._config.interval_seconds)
            players = [self._player(m) for m in self._membership.ready()]
            change = self._balance.next_change(players, now=self._clock())
            if change is not None:
                await self._make(change)

    def _player(self, member: Member) -> RolePlayer:
        num_requests = self._work.num_requests(member.worker_id) + member.num_others
        return RolePlayer(
            worker_id=member.worker_id,
            role=member.role,
            home=member.endpoint.role,
            prefill_tokens=self._work.prefill_tokens(member.worker_id),
            num_decoding=0 if member.role is WorkerRole.PREFILL else num_requests,
            may_change=member.peer.dialect is not Dialect.SGLANG,
        )

    async def _make(self, change: Change) -> None:
        member = self._membership.members.get(change.worker_id)
        if member is None:
            return
        if WorkerRole.BOTH not in (change.role, member.role):
            member.is_draining = True
            try:
                await member.idle(self._config.drain_seconds)
            finally:
                # One that is to be removed goes on draining.
                member.is_draining = member.removal is not None
        if member.status is WorkerStatus.UP:
            logger.info("%s changes from %s to %s", member.worker_id, member.role, change.role)
            self._membership.assign(member, change.role)
            self.num_changes += 1
