"""What a plot needs of a run: distributions as curves, and load over time."""

from collections.abc import Sequence

import numpy as np

from expediter.results.figures import Points
from expediter.simulation.answer import Answer
from expediter.simulation.experiment import Run
from expediter.simulation.stages import Stages

NUM_POINTS = 201
NUM_MOMENTS = 120


def cdf(values: Sequence[float]) -> Points:
    """Which share of the values is at most x."""
    if not values:
        return [], []
    shares = np.linspace(0.0, 1.0, NUM_POINTS)
    return np.quantile(np.asarray(values), shares).tolist(), (100 * shares).tolist()


def latencies(answers: Sequence[Answer], name: str) -> list[float]:
    """One of `Stages`'s times of every complete answer that has it, in milliseconds."""
    found = (getattr(Stages(answer), name) for answer in answers if answer.is_complete)
    return [value * 1e3 for value in found if value is not None]


def open_requests(run: Run) -> list[list[float]]:
    """A row a worker: how many of its requests were open, in the mean over each moment.

    Moments are equal parts of the run. A request is counted where it was answered, from its
    arrival to its end.
    """
    moments = np.linspace(0.0, run.seconds, NUM_MOMENTS + 1)
    begin = run.answers[0].arrived_at if run.answers else 0.0
    ids = [worker.worker_id for worker in run.workers]
    return [_open(_spans(run, worker_id, begin), moments).tolist() for worker_id in ids]


def _spans(run: Run, worker_id: str, begin: float) -> list[tuple[float, float]]:
    return [
        (answer.arrived_at - begin, (answer.finished_at or answer.arrived_at) - begin)
        for answer in run.answers
        if answer.worker_id == worker_id
    ]


def _open(
    spans: Sequence[tuple[float, float]], moments: "np.typing.NDArray[np.float64]"
) -> "np.typing.NDArray[np.float64]":
    """The integral of how many are open, at each moment, and its differences."""
    if not spans or moments[-1] <= 0:
        return np.zeros(len(moments) - 1)
    starts, ends = np.asarray(spans).T
    total = np.zeros(len(moments))
    for edge in (starts, ends):
        ordered = np.sort(edge)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        count = np.searchsorted(ordered, moments)
        area = count * moments - sums[count]  # what has passed since each of these edges
        total += area if edge is starts else -area
    return np.diff(total) / np.diff(moments)
