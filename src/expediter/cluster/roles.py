"""Which worker should change its role, from how hard each role is pressed. Pure arithmetic.

    pressure(prefill) = prompt tokens not computed, a prefill worker / prefill_slack_tokens
    pressure(decode)  = requests, a decode worker / decode_slack_requests

Both are 1 where a worker has about as much as it can do without anybody waiting. A role is short
of workers while its pressure is above 1 and above `ratio` times the other's. It gets one of the
other's, the least busy, if it has been short for `hold_seconds`, no change was made for
`pause_seconds`, one worker is left, and the change would not leave the other role short: so a load
that stays as it is comes to rest after a few changes, all in one direction.

With a mixed pool (Splitwise, ISCA 2024) the worker takes both roles on, and goes back to its own
once that role needs it, or the one it helps has been at ease for as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from expediter.config import RebalanceConfig
from expediter.load import WorkerId, WorkerRole

BOTH, PREFILL, DECODE = WorkerRole.BOTH, WorkerRole.PREFILL, WorkerRole.DECODE


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlayer:
    """A worker that serves. `home` is the role it was given; `may_change` if it can play others."""

    worker_id: WorkerId
    role: WorkerRole
    home: WorkerRole
    prefill_tokens: float = 0.0
    num_decoding: int = 0  # requests there that are not prefill alone
    may_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A worker's next role."""

    worker_id: WorkerId
    role: WorkerRole


class RoleBalance:
    """Call `next_change` now and then; a change that it returns is taken to be made."""

    def __init__(self, config: RebalanceConfig) -> None:
        self._config = config
        self._wish: Change | None = None
        self._wished_since = 0.0
        self._changed_at = float("-inf")

    def next_change(self, workers: Sequence[RolePlayer], *, now: float) -> Change | None:
        """A change that has been called for long enough, or None."""
        wish = self._wanted(workers)
        if wish is None or self._wish is None or wish.role is not self._wish.role:
            self._wished_since = now
        self._wish = wish
        if wish is None or now - self._wished_since < self._config.hold_seconds:
            return None
        if now - self._changed_at < self._config.pause_seconds:
            return None
        self._wish, self._changed_at = None, now
        return wish

    def _wanted(self, workers: Sequence[RolePlayer]) -> Change | None:
        for short, other in ((PREFILL, DECODE), (DECODE, PREFILL)):
            if self._is_short(short, workers):
                return self._help(short, other, workers)
        return self._go_home(workers)

    def _help(
        self, short: WorkerRole, other: WorkerRole, workers: Sequence[RolePlayer]
    ) -> Change | None:
        """One more for the role that is short: one of its own that helps out, or another."""
        mixed = self._config.mixed_pool
        if back := [w for w in workers if w.role is BOTH and w.home is short]:
            return Change(worker_id=_least_busy(back).worker_id, role=short)
        able = [w for w in workers if w.role is other and w.may_change]
        if not able or len([w for w in workers if w.role is other]) < 2:
            return None
        helper = _least_busy(able)
        role = BOTH if mixed and helper.home is other else short
        after = [_with_role(w, role) if w is helper else w for w in workers]
        if self._is_short(other, after):
            return None
        return Change(worker_id=helper.worker_id, role=role)

    def _go_home(self, workers: Sequence[RolePlayer]) -> Change | None:
        """Nobody is short: who helps out goes back, if that leaves the role it helps at ease."""
        for worker in workers:
            if worker.role is not BOTH or worker.home is BOTH:
                continue
            after = [_with_role(w, w.home) if w is worker else w for w in workers]
            helped = DECODE if worker.home is PREFILL else PREFILL
            if self._pressure(helped, after) * self._config.ratio < 1:
                return Change(worker_id=worker.worker_id, role=worker.home)
        return None

    def _is_short(self, role: WorkerRole, workers: Sequence[RolePlayer]) -> bool:
        other = DECODE if role is PREFILL else PREFILL
        pressure = self._pressure(role, workers)
        return pressure > 1 and pressure > self._config.ratio * self._pressure(other, workers)

    def _pressure(self, role: WorkerRole, workers: Sequence[RolePlayer]) -> float:
        """The whole fleet's work of this kind, over the workers that take it."""
        playing = sum(1 for w in workers if w.role in (role, BOTH))
        if role is PREFILL:
            work = sum(w.prefill_tokens for w in workers) / self._config.prefill_slack_tokens
        else:
            decoding = sum(w.num_decoding for w in workers)
            work = decoding / self._config.decode_slack_requests
        return work / playing if playing else (float("inf") if work else 0.0)


def _least_busy(workers: Sequence[RolePlayer]) -> RolePlayer:
    return min(workers, key=lambda w: (w.num_decoding, w.prefill_tokens, w.worker_id))


def _with_role(worker: RolePlayer, role: WorkerRole) -> RolePlayer:
    return RolePlayer(
        worker_id=worker.worker_id,
        role=role,
        home=worker.home,
        prefill_tokens=worker.prefill_tokens,
        num_decoding=worker.num_decoding,
        may_change=worker.may_change,
    )
