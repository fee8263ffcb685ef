"""Two workers drawn at random, and the less loaded of them.

One look at a second worker already cuts the longest queue from about log n / log log n to
log log n (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 1996). And
where several routers see the same stale loads, they do not all run to the same idle worker.
"""

import random

from expediter.routing.view import Choice, ClusterView, RoutedRequest


class PowerOfTwo:
    """The less loaded of two random workers; the first drawn when they are equal."""

    uses_prefixes = False
    uses_loads = True

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RoutedRequest, view: ClusterView) -> Choice:  # noqa: ARG002
        """One of two, or the only one there is."""
        drawn = self._rng.sample(view.workers, min(2, len(view.workers)))
        worker = min(drawn, key=lambda worker: (worker.load_tokens, worker.num_requests))
        return Choice(
            worker_id=worker.worker_id,
            matched_tokens=view.matched_tokens(worker.worker_id),
            reason="power-of-two",
            scores={worker.worker_id: -worker.load_tokens for worker in view.workers},
        )
