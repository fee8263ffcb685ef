"""How fast workers really compute prompts, learnt from their first tokens.

A regression may be for another model, or for other hardware. From one first token of a worker to
its next, what was computed took so long; the sum of these times over the sum of what the
regression says is its scale. One scale serves all workers, since their times are noisy: only a
worker that is `OUTLIER` times slower or faster than the fleet counts with its own.
"""

from dataclasses import dataclass

from expediter.load import WorkerId

MEMORY = 0.98  # of the sums, kept at each first token
PRIOR_SECONDS = 0.5  # that the regression itself counts in the fleet's scale
OUTLIER = 1.5
MIN_FIRST_TOKENS = 30  # of a worker before it can be an outlier


@dataclass(slots=True)
class _Sums:
    predicted: float = 0.0
    observed: float = 0.0
    num_added: int = 0

    def add(self, predicted: float, observed: float, *, memory: float) -> None:
        self.predicted = memory * self.predicted + predicted
        self.observed = memory * self.observed + observed
        self.num_added += 1


class PrefillSpeed:
    """Observed over predicted seconds; 1 until there is something to learn from."""

    def __init__(self) -> None:
        self._fleet = _Sums(PRIOR_SECONDS, PRIOR_SECONDS)
        self._workers: dict[WorkerId, _Sums] = {}
        self.fleet_scale = 1.0

    def learn(self, worker_id: WorkerId, *, predicted: float, observed: float) -> None:
        """A request's prefill, and how long it took once its turn had come."""
        workers = self._workers
        sums = workers.setdefault(worker_id, _Sums())
        sums.add(predicted, observed, memory=MEMORY)
        self._fleet.add(predicted, observed, memory=MEMORY ** (1 / len(workers)))
        self.fleet_scale = self._fleet.observed / self._fleet.predicted

    def scale(self, worker_id: WorkerId) -> float:
        """What to multiply the regression with for this worker."""
        sums = self._workers.get(worker_id)
        if sums is None or sums.num_added < MIN_FIRST_TOKENS or len(self._workers) == 1:
            return self.fleet_scale
        own = sums.observed / sums.predicted
        is_usual = self.fleet_scale / OUTLIER < own < self.fleet_scale * OUTLIER
        return self.fleet_scale if is_usual else own

    def forget(self, worker_id: WorkerId) -> None:
        """The worker left; another may come under its name."""
        self._workers.pop(worker_id, None)
