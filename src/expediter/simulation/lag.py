"""What messages take longer for a while: the network's trouble with one worker."""

from expediter.load import WorkerId


class Lags:
    """Seconds that whatever goes to or from a worker takes besides the usual, one way."""

    def __init__(self) -> None:
        self._added: dict[WorkerId, list[float]] = {}

    def of(self, worker_id: WorkerId) -> float:
        """To or from one worker."""
        return sum(self._added[worker_id]) if worker_id in self._added else 0.0

    def between(self, one: WorkerId, other: WorkerId) -> float:
        """From one worker to another."""
        return self.of(one) + self.of(other) if self._added else 0.0

    def add(self, worker_id: WorkerId, seconds: float) -> None:
        """From now on."""
        self._added.setdefault(worker_id, []).append(seconds)

    def take_back(self, worker_id: WorkerId, seconds: float) -> None:
        """What was added once is over."""
        added = self._added[worker_id]
        added.remove(seconds)
        if not added:
            del self._added[worker_id]
