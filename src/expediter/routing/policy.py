"""Which worker gets a request: the contract, and the policies that ignore caches."""

import random
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from typing import Protocol

from expediter.load import WorkerId
from expediter.routing.view import Choice, ClusterView, RoutedRequest, WorkerView


class RoutingPolicy(Protocol):
    """Chooses among a view's workers. May remember its choices; changes nothing else.

    `uses_prefixes` says whether matches matter: if not, nobody computes them. Nor are loads told
    where they do not matter, by `uses_loads`.
    """

    uses_prefixes: bool
    uses_loads: bool

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:
        """The worker for the request, which is always one of the view's."""
        ...


class Turns:
    """Breaks ties fairly: the worker whose turn was longest ago is next."""

    def __init__(self) -> None:
        self._last_turn: dict[WorkerId, int] = {}
        self._num_turns = 0

    def waited_longest(self, workers: Sequence[WorkerView]) -> WorkerView:
        """The worker least recently taken; the first of those never taken."""
        last_turn = self._last_turn.get
        turns = [last_turn(worker.worker_id, 0) for worker in workers]
        return workers[turns.index(min(turns))]

    def in_order(self, workers: Sequence[WorkerView]) -> list[WorkerView]:
        """All of them, as their turns come if each is taken in its turn."""
        last_turn = self._last_turn.get
        return sorted(workers, key=lambda worker: last_turn(worker.worker_id, 0))

    def take(self, worker_id: WorkerId) -> None:
        """It was this worker's turn."""
        self._num_turns += 1
        self._last_turn[worker_id] = self._num_turns


class Random:
    """Every worker is as likely as any other."""

    uses_prefixes = False
    uses_loads = False

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:  # noqa: ARG002
        """Any worker."""
        return _choice(self._rng.choice(view.workers).worker_id, view, reason="random")


class RoundRobin:
    """Workers take turns."""

    uses_prefixes = False
    uses_loads = False

    def __init__(self) -> None:
        self._turns = Turns()
        self._workers: Sequence[WorkerView] = ()
        # If the same list came again, they take turns without a look at all:
        self._order: Sequence[WorkerId] = ()
        self._round: Iterator[tuple[WorkerId, int]] | None = None
        self._num_taken = 0  # turns of the round

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:  # noqa: ARG002
        """The worker whose turn was longest ago."""
        workers = view.workers
        if workers is self._workers and self._round is not None:
            worker_id, self._num_taken = next(self._round)
        else:
            worker_id = self._look(workers)
        matched = view.matched.get(worker_id, 0)
        return Choice(worker_id=worker_id, matched_tokens=matched, reason="round-robin")

    def _look(self, workers: Sequence[WorkerView]) -> WorkerId:
        """The next one, if there is no round of them, or another one."""
        turns, order = self._turns, self._order
        for number in range(max(0, self._num_taken - len(order)), self._num_taken):
            turns.take(order[number % len(order)])
        self._round, self._num_taken = None, 0
        worker_id = turns.waited_longest(workers).worker_id
        turns.take(worker_id)
        if workers is self._workers:
            self._order = [worker.worker_id for worker in turns.in_order(workers)]
            self._round = zip(cycle(self._order), count(1), strict=False)
        self._workers = workers
        return worker_id


class LeastLoaded:
    """The least outstanding work; equals take turns."""

    uses_prefixes = False
    uses_loads = True

    def __init__(self) -> None:
        self._turns = Turns()

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:  # noqa: ARG002
        """The worker with the fewest tokens of work outstanding."""
        least = min(worker.load_tokens for worker in view.workers)
        idlest = [worker for worker in view.workers if worker.load_tokens == least]
        worker = self._turns.waited_longest(idlest)
        self._turns.take(worker.worker_id)
        scores = {worker.worker_id: -worker.load_tokens for worker in view.workers}
        return _choice(worker.worker_id, view, reason="least-loaded", scores=scores)


def _choice(
    worker_id: WorkerId,
    view: ClusterView,
    *,
    reason: str,
    scores: dict[WorkerId, float] | None = None,
) -> Choice:
    return Choice(
        worker_id=worker_id,
        matched_tokens=view.matched.get(worker_id, 0),
        reason=reason,
        scores={} if scores is None else scores,
    )
