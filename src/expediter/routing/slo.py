"""The worker where everybody waits least: predicted times, and a toll on the work they add.

    cost(w) = W + S                         this request's first token
            + beta R (S + 2 D)              the R answers being decoded there, and its own
            + kappa lambda / (1 - rho) S (W + S / 2)        who comes after it
    the least cost wins

W is the prefill still ahead of it at the worker, S its own, for the tokens not cached there: all
in seconds, by a regression (`gpu_cost.py`) whose scale is learnt from first tokens. D is what one
answer more or less changes in the decoding of another: the mean answer's length times a request's
part of a step. A pause in a stream of tokens counts `beta` of a wait for the first one.

The last term is the first step of policy iteration for parallel queues, as in Hyytiä, Penttinen,
Aalto, "Size- and state-aware dispatching problem with queue-specific job sizes" (EJOR, 2012): in
an M/G/1 queue with u seconds of work ahead, requests to come wait lambda u^2 / (2 (1 - rho)) more
than at an empty one, so S more seconds cost them lambda / (1 - rho) S (W + S / 2). It is what
makes a busy fleet keep to its caches while an idle one spreads. `kappa` is 1 for Poisson arrivals
and larger when they come in bursts. rho and lambda are a worker's share of the last
`WINDOW_SECONDS` of work and requests.

Work that makes a copy of a hot prefix also saves those to come from waiting. How many they are
shows in the queue: the toll is divided by one more than the requests that wait at a worker for the
same match. And a second of work costs others `MAX_TOLL` seconds at most.

What is cached is the index's word, and what earlier requests will have computed by then: prompts
still queued at a worker count as cached there, found by a mark every `MARK_TOKENS` tokens, or in
text `TEXT_MARK_TOKENS`. They are names that the index has computed for its match.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from expediter.clock import Clock
from expediter.load import WorkerId
from expediter.routing.feedback import Failed, Feedback, Finished, FirstToken, WorkerRemoved
from expediter.routing.gpu_cost import GpuCost
from expediter.routing.policy import Turns
from expediter.routing.prefill_speed import PrefillSpeed
from expediter.routing.prompt import BlockKey, Prompt, num_held
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView

WINDOW_SECONDS = 20.0
MAX_UTILISATION = 0.95  # beyond it a queue has no steady state, and the toll no meaning
MAX_TOLL = 2.0  # seconds that a second of work may cost others
MARK_TOKENS = 256
TEXT_MARK_TOKENS = 512
_MS = 1e-3
EXPECTED_OUTPUT_TOKENS = 128.0
OUTPUT_MEMORY = 0.99  # of the mean answer's length, kept at each answer


@dataclass(slots=True)
class _Queued:
    """A request whose first token has not come; `seconds` by the regression, not scaled."""

    worker_id: WorkerId
    seconds: float
    placed_at: float
    marks: Sequence[BlockKey]


@dataclass(slots=True)
class _Queue:
    """What waits at one worker. `since` is when its first request's turn came."""

    requests: dict[str, _Queued] = field(default_factory=dict)
    seconds: float = 0.0
    since: float = 0.0
    marks: dict[BlockKey, int] = field(default_factory=dict)


class PredictedCost:
    """argmin of the cost above."""

    uses_prefixes = True
    uses_loads = True

    def __init__(
        self,
        *,
        clock: Clock,
        cost: GpuCost,
        block_size: int,
        decode_weight: float = 0.05,
        congestion_weight: float = 4.0,
    ) -> None:
        """`decode_weight` is beta, `congestion_weight` is kappa."""
        self._clock = clock
        # A floor would make any two short prompts equal, on other hardware too.
        self._cost = replace(cost, prefill_floor=0.0)
        self._block_size = block_size
        self._decode_weight = decode_weight
        self._congestion_weight = congestion_weight
        context = cost.step_per_context_token * cost.typical_context
        self._step_share = (cost.step_per_request + context) * _MS
        self._speed = PrefillSpeed()
        self._queues: dict[WorkerId, _Queue] = {}
        self._where: dict[str, WorkerId] = {}
        self._turns = Turns()
        self._num_output = EXPECTED_OUTPUT_TOKENS
        self._num_recent = 0.0  # requests and seconds of prefill of the window, decayed
        self._recent_seconds = 0.0
        self._decayed_at = 0.0

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        """The placement waits until its story goes on; scores are negative costs in seconds.

        Reasons: longest-match, no-match, or overloaded where a longer match would cost more.
        """
        self._leave(request.request_id)
        now = self._clock()
        marks, distance = self._marks(request.prompt)
        matched = self._matched(marks, distance, view)
        toll = self._toll(now, num_workers=len(view.workers))
        sharing = 1 + self._num_queued_with(marks, distance, matched)
        own = {held: self._own_seconds(request.num_tokens, held) for held in {*matched.values()}}
        costs = {
            worker.worker_id: self._total(
                worker, own=own[matched[worker.worker_id]], toll=toll, sharing=sharing, now=now
            )
            for worker in view.workers
        }
        least = min(costs.values())
        best = [w for w in view.workers if costs[w.worker_id] == least]
        worker_id = self._turns.waited_longest(best).worker_id
        self._turns.take(worker_id)
        held = matched[worker_id]
        self._join(request.request_id, _Queued(worker_id, own[held], now, marks))
        return Choice(
            worker_id=worker_id,
            matched_tokens=view.matched_tokens(worker_id),
            reason=_reason(held, max(matched.values())),
            scores={name: -cost for name, cost in costs.items()},
        )

    def observe(self, feedback: Feedback) -> None:
        """A first token tells how fast its worker is, an end how long answers are."""
        match feedback:
            case FirstToken(request_id=request_id):
                self._computed(request_id)
            case Finished(request_id=request_id, output_tokens=num_tokens):
                self._leave(request_id)
                if num_tokens is not None:
                    self._num_output += (1 - OUTPUT_MEMORY) * (num_tokens - self._num_output)
            case Failed(request_id=request_id):
                self._leave(request_id)
            case WorkerRemoved(worker_id=worker_id):
                self._speed.forget(worker_id)
                queue = self._queues.pop(worker_id, _Queue())
                for request_id in queue.requests:
                    del self._where[request_id]
            case _:
                pass

    def _total(
        self, worker: WorkerView, *, own: float, toll: float, sharing: int, now: float
    ) -> float:
        worker_id, num_running, wait = worker.worker_id, worker.num_requests, 0.0
        scale = self._speed.scale(worker_id)
        queue = self._queues.get(worker_id)
        if queue is not None and queue.requests:
            num_running = max(0, num_running - len(queue.requests))
            wait = _wait(queue, scale=scale, now=now)
        own *= scale
        decode = self._num_output * self._step_share * scale
        beside = self._decode_weight * num_running * (own + 2 * decode)
        behind = toll * (wait + own / 2)
        return wait + own + beside + own * min(MAX_TOLL, behind) / sharing

    def _own_seconds(self, num_tokens: int, num_held: int) -> float:
        """Its prefill; some of a prompt is computed even if all of it is cached."""
        return self._cost.prefill_seconds(max(1, num_tokens - num_held), num_held)

    def _marks(self, prompt: Prompt | None) -> tuple[Sequence[BlockKey], int]:
        """Names of its beginnings, and by how many tokens each is longer than the one before."""
        if prompt is None:
            return (), 1
        if prompt.is_text:
            prompt.marks(self._block_size)
            return prompt.named_every(TEXT_MARK_TOKENS), TEXT_MARK_TOKENS
        marks = prompt.named_every(MARK_TOKENS)
        if marks:
            return marks, MARK_TOKENS
        stride = max(1, MARK_TOKENS // self._block_size)
        keys = prompt.known_keys(self._block_size)
        return keys[stride - 1 :: stride], stride * self._block_size

    def _matched(
        self, marks: Sequence[BlockKey], distance: int, view: ClusterView
    ) -> dict[WorkerId, int]:
        """Tokens that each worker holds, or will have computed when the request's turn comes."""
        held, queues = view.matched.get, self._queues
        matched = {worker.worker_id: held(worker.worker_id, 0) for worker in view.workers}
        for worker_id in queues.keys() & matched.keys():
            queued = queues[worker_id].marks
            if queued:
                num_tokens = num_held(marks, queued) * distance
                matched[worker_id] = max(matched[worker_id], num_tokens)
        return matched

    def _num_queued_with(
        self, marks: Sequence[BlockKey], distance: int, matched: dict[WorkerId, int]
    ) -> int:
        """How many requests wait, at one worker, for what this one has matched there."""
        most = 0
        for worker_id, num_tokens in matched.items():
            depth = min(num_tokens // distance, len(marks))
            queue = self._queues.get(worker_id)
            if depth and queue is not None:
                most = max(most, queue.marks.get(marks[depth - 1], 0))
        return most

    def _toll(self, now: float, *, num_workers: int) -> float:
        """What a second of work costs those to come, for each second of the queue it is in."""
        self._decay(now)
        per_worker = 1 / (WINDOW_SECONDS * num_workers)
        busy = self._recent_seconds * self._speed.fleet_scale * per_worker
        rate = self._num_recent * per_worker
        return self._congestion_weight * rate / (1 - min(busy, MAX_UTILISATION))

    def _decay(self, now: float) -> None:
        kept = math.exp((self._decayed_at - now) / WINDOW_SECONDS)
        self._num_recent *= kept
        self._recent_seconds *= kept
        self._decayed_at = now

    def _join(self, request_id: str, queued: _Queued) -> None:
        self._num_recent += 1
        self._recent_seconds += queued.seconds
        queue = self._queues.setdefault(queued.worker_id, _Queue())
        if not queue.requests:
            queue.since = queued.placed_at
        queue.requests[request_id] = queued
        queue.seconds += queued.seconds
        for key in queued.marks:
            queue.marks[key] = queue.marks.get(key, 0) + 1
        self._where[request_id] = queued.worker_id

    def _computed(self, request_id: str) -> None:
        worker_id = self._where.get(request_id)
        if worker_id is None:
            return
        queue, now = self._queues[worker_id], self._clock()
        queued = queue.requests[request_id]
        began = max(queue.since, queued.placed_at)
        self._speed.learn(worker_id, predicted=queued.seconds, observed=max(0.0, now - began))
        queue.since = now
        self._leave(request_id)

    def _leave(self, request_id: str) -> None:
        worker_id = self._where.pop(request_id, None)
        if worker_id is None:
            return
        queue = self._queues[worker_id]
        queued = queue.requests.pop(request_id)
        queue.seconds = queue.seconds - queued.seconds if queue.requests else 0.0
        for key in queued.marks:
            num_left = queue.marks[key] - 1
            if num_left:
                queue.marks[key] = num_left
            else:
                del queue.marks[key]


def _wait(queue: _Queue, *, scale: float, now: float) -> float:
    """Seconds until a queue is empty, if no more has been done than its first request."""
    first = next(iter(queue.requests.values()))
    return max(0.0, queue.seconds * scale - min(now - queue.since, first.seconds * scale))


def _reason(matched: int, longest: int) -> str:
    if longest == 0:
        return "no-match"
    return "longest-match" if matched == longest else "overloaded"
