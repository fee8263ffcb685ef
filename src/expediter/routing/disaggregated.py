"""Prefill on one worker and decode on another, or both on one: whichever costs less.

    together(d) = W_d + S_d + beta (R_d + 1) S_d       prompt and answer at the decode worker d
    split(p, d) = W_p + S_p + X                        the prompt at the prefill worker p
    the least of all wins

All are seconds. W is the prefill still ahead at a worker, S the request's own, for the tokens not
cached there. The R answers being decoded at d pause while it computes a prompt, and so do those to
come, which count as one: that is the interference that splitting avoids (DistServe, OSDI 2024),
and `beta` is what a second of it counts against a second of waiting for the first token. X is the
transfer of what d does not hold, as far as the first token waits for it; where layers are copied
while the next are computed, or the prefill worker's token is passed on, that is nothing.

Prompts with few tokens to compute stay with the decode worker (conditional disaggregation): the
second request costs more than it saves. How fast prefill workers are is learnt from what they do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from expediter.clock import Clock
from expediter.config import DisaggregationConfig
from expediter.errors import ConfigError
from expediter.load import WorkerId
from expediter.routing.gpu_cost import NAMED_COSTS, GpuCost
from expediter.routing.policy import Turns
from expediter.routing.prefill_speed import PrefillSpeed
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

MAX_UNSEEN = 64  # workers that are known and not in view


class PairChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`prefill` is None where the decode worker does both. Costs are in seconds."""

    decode: Choice
    prefill: Choice | None = None
    costs: Mapping[str, float] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class _Prefilling:
    """A prompt at a prefill worker; `seconds` by the regression, not scaled."""

    worker_id: WorkerId
    seconds: float
    began_at: float


class Disaggregated:
    """argmin of the costs above; with `always`, every prompt that is long enough is split."""

    def __init__(
        self,
        *,
        clock: Clock,
        cost: GpuCost,
        min_uncached_tokens: int,
        decode_weight: float,
        transfer_seconds_per_token: float,
        always: bool = False,
    ) -> None:
        """`decode_weight` is beta."""
        self._clock = clock
        self._cost = replace(cost, prefill_floor=0.0)
        self._min_uncached_tokens = min_uncached_tokens
        self._decode_weight = decode_weight
        self._always = always
        self._speed = PrefillSpeed()
        self._turns = Turns()
        self._prefilling: dict[str, _Prefilling] = {}
        self._free_since: dict[WorkerId, float] = {}
        self._transfer_seconds_per_token = transfer_seconds_per_token

    @classmethod
    def configured(cls, config: DisaggregationConfig, *, clock: Clock) -> Self:
        """By settings; ConfigError for a regression that does not exist."""
        cost = NAMED_COSTS.get(config.gpu_cost)
        if cost is None:
            raise ConfigError(
                f"gateway.disaggregation.gpu-cost is {config.gpu_cost!r}; "
                f"allowed are {', '.join(NAMED_COSTS)}"
            )
        return cls(
            clock=clock,
            cost=cost,
            min_uncached_tokens=config.min_uncached_tokens,
            decode_weight=config.decode_weight,
            transfer_seconds_per_token=config.transfer_seconds_per_token,
            always=config.split == "always",
        )

    def choose(
        self,
        request: RoutedRequest,
        *,
        prefill: ClusterView,
        decode: ClusterView,
        waits_for_transfer: bool,
        must_split: bool = False,
    ) -> PairChoice:
        """Reasons: split, short-prompt, no-other-worker, together where splitting would cost more.

        A worker in both views may do either, but is no pair with itself. `must_split` is for
        workers that cannot do without each other.
        """
        self._forget_others(prefill)
        together = {w.worker_id: self._together(w, request, decode) for w in decode.workers}
        home = self._least(decode, together)
        target = self._least_busy(decode)
        num_new = request.num_tokens - decode.matched_tokens(home.worker_id)
        if not must_split and num_new < max(1, self._min_uncached_tokens):
            return self._stays(home, decode, together, reason="short-prompt")
        others = [w for w in prefill.workers if w.worker_id != target.worker_id]
        if not others:
            return self._stays(home, decode, together, reason="no-other-worker")
        num_missing = request.num_tokens - decode.matched_tokens(target.worker_id)
        exposed = num_missing * self._transfer_seconds_per_token if waits_for_transfer else 0.0
        split = {w.worker_id: self._first(w, request, prefill) + exposed for w in others}
        source = self._least(ClusterView(workers=others), split)
        costs = {"split": split[source.worker_id], "together": together[home.worker_id]}
        if not (must_split or self._always) and costs["together"] < costs["split"]:
            return self._stays(home, decode, together, reason="together", costs=costs)
        self._turns.take(source.worker_id)
        scores = {name: -cost for name, cost in (together | split).items()}
        return PairChoice(
            decode=self._choice(target, decode, scores, reason="split"),
            prefill=self._choice(source, prefill, scores, reason="split"),
            costs=costs,
        )

    def begin(self, request: RoutedRequest, *, worker_id: WorkerId, num_held: int) -> None:
        """The prompt is sent to its prefill worker, which holds so much of it."""
        seconds = self._own_seconds(request.num_tokens, num_held)
        self._prefilling[request.request_id] = _Prefilling(worker_id, seconds, self._clock())

    def end(self, request_id: str, *, is_computed: bool) -> None:
        """It was computed, which tells how fast its worker is, or was not."""
        prefilling = self._prefilling.pop(request_id, None)
        if prefilling is None or not is_computed:
            return
        now, worker_id = self._clock(), prefilling.worker_id
        began = max(prefilling.began_at, self._free_since.get(worker_id, 0.0))
        self._free_since[worker_id] = now
        if prefilling.seconds > 0:
            self._speed.learn(
                worker_id, predicted=prefilling.seconds, observed=max(0.0, now - began)
            )

    def _forget_others(self, view: ClusterView) -> None:
        """Workers come and go under new names: what is known of them must not grow without end."""
        if len(self._free_since) > MAX_UNSEEN + len(view.workers):
            seen = {w.worker_id for w in view.workers}
            for worker_id in self._free_since.keys() - seen:
                self._speed.forget(worker_id)
                del self._free_since[worker_id]

    def _together(self, worker: WorkerView, request: RoutedRequest, view: ClusterView) -> float:
        own = self._scaled(worker, request, view)
        beside = self._decode_weight * (worker.num_requests + 1) * own
        return self._wait(worker) + own + beside

    def _first(self, worker: WorkerView, request: RoutedRequest, view: ClusterView) -> float:
        """Until the prefill worker has computed the prompt."""
        return self._wait(worker) + self._scaled(worker, request, view)

    def _wait(self, worker: WorkerView) -> float:
        per_token = self._cost.prefill_per_token * 1e-3 * self._speed.scale(worker.worker_id)
        return worker.prefill_tokens * per_token

    def _scaled(self, worker: WorkerView, request: RoutedRequest, view: ClusterView) -> float:
        held = view.matched_tokens(worker.worker_id)
        scale = self._speed.scale(worker.worker_id)
        return self._own_seconds(request.num_tokens, held) * scale

    def _own_seconds(self, num_tokens: int, num_held: int) -> float:
        return self._cost.prefill_seconds(max(1, num_tokens - num_held), num_held)

    def _least(self, view: ClusterView, costs: Mapping[WorkerId, float]) -> WorkerView:
        least = min(costs.values())
        return self._turns.waited_longest([w for w in view.workers if costs[w.worker_id] == least])

    def _least_busy(self, view: ClusterView) -> WorkerView:
        """The decode worker with the least to do; among equals, the one that must fetch least."""
        least = min((w.load_tokens, -view.matched_tokens(w.worker_id)) for w in view.workers)
        return self._turns.waited_longest(
            [w for w in view.workers if (w.load_tokens, -view.matched_tokens(w.worker_id)) == least]
        )

    def _stays(
        self,
        worker: WorkerView,
        view: ClusterView,
        together: Mapping[WorkerId, float],
        *,
        reason: str,
        costs: Mapping[str, float] | None = None,
    ) -> PairChoice:
        scores = {name: -cost for name, cost in together.items()}
        return PairChoice(
            decode=self._choice(worker, view, scores, reason=reason), costs=costs or {}
        )

    def _choice(
        self,
        worker: WorkerView,
        view: ClusterView,
        scores: Mapping[WorkerId, float],
        *,
        reason: str,
    ) -> Choice:
        self._turns.take(worker.worker_id)
        return Choice(
            worker_id=worker.worker_id,
            matched_tokens=view.matched_tokens(worker.worker_id),
            reason=reason,
            scores=scores,
        )
