"""How long requests took: histograms by model, worker and class, counted as requests end.

This runs for every request: it finds a series by one look-up in a dict and appends a row of numbers
there. Rows are counted when there are many, or when somebody looks; names are made fit for labels
only the first time they are seen. A client
chooses its model's name and its class, so both are bounded: a model that no worker serves is
`other`, and so is a class once there are many.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from struct import Struct

import msgspec
import numpy as np
import numpy.typing as npt

from expediter.gateway.hot_prefixes import HotPrefixes
from expediter.gateway.story import Story

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
ROUTING_SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1, 1.0)
MAX_ROWS = 256
UNKNOWN = float("nan")
MAX_SERIES = 1000
MAX_CLASSES = 32
MAX_NAMES = 4096  # as clients gave them
OTHER = "other"
NONE = "none"

Values = npt.NDArray[np.float64]
Key = tuple[str | None, str, str | None]
"""Model, worker, class: as the request has them."""


class Histogram:
    """Counts by upper bound; the last count is of what lies above all bounds."""

    __slots__ = ("_counts", "_edges", "bounds", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._edges = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)

    @property
    def counts(self) -> list[int]:
        """One for each bound, and one more."""
        return self._counts.tolist()

    def add(self, values: Values) -> None:
        """Count observations."""
        places = self._edges.searchsorted(values)
        self._counts += np.bincount(places, minlength=len(self._counts))
        self.total += float(values.sum())


class Labels(msgspec.Struct, frozen=True):
    """What a series is about, fit for Prometheus."""

    model: str
    worker: str
    slo_class: str


_ROW = Struct("8d")
"""When a request arrived, was sent on and was placed, its worker's first byte after that or
UNKNOWN, its end, the number of tries, the tokens of the answer or 0, and its status."""


class Series:
    """What was observed of the requests of one model at one worker in one class."""

    __slots__ = (
        "num_rows",
        "queueing",
        "routing",
        "rows",
        "statuses",
        "token",
        "total",
        "ttft",
    )

    def __init__(self) -> None:
        self.queueing = Histogram(ROUTING_SECONDS)
        self.routing = Histogram(ROUTING_SECONDS)
        self.ttft = Histogram(SECONDS)
        self.total = Histogram(SECONDS)
        self.token = Histogram(TOKEN_SECONDS)
        self.statuses: Counter[int] = Counter()
        self.rows = bytearray(MAX_ROWS * _ROW.size)
        self.num_rows = 0  # that are not counted yet

    def sort_in(self) -> None:
        """Count what is in the rows."""
        if not self.num_rows:
            return
        rows = np.frombuffer(self.rows).reshape(MAX_ROWS, -1)[: self.num_rows]
        self.num_rows = 0
        arrived, sent, placed, wait, ended, tries, num_tokens, status = rows.T
        self.statuses.update(status.astype(int).tolist())
        first = placed + wait
        is_answered = ~np.isnan(wait)
        self.queueing.add(sent - arrived)
        self.routing.add((placed - sent)[tries == 1])
        self.ttft.add((first - arrived)[is_answered])
        self.total.add((ended - arrived)[is_answered])
        has_more = is_answered & (num_tokens > 1)
        self.token.add((ended - first)[has_more] / (num_tokens[has_more] - 1))


class Observations:
    """All series; `is_served` tells whether a worker serves the model."""

    def __init__(self, *, is_served: Callable[[str], bool]) -> None:
        self._is_served = is_served
        self._by_labels: dict[Labels, Series] = {}
        self._by_name: dict[Key, Series] = {}
        self._classes: set[str] = set()
        self.refusals: Counter[str] = Counter()
        self.prefixes = HotPrefixes()

    def add(self, story: Story) -> None:
        """A request that was placed has ended, one way or another."""
        decision = story.decision
        if decision is None:
            return
        decision.arrived_at, decision.read_at = story.arrived_at, story.sent_at
        decision.ended_at = story.ended_at
        if story.routed.prompt is not None:
            self.prefixes.add(story.routed.prompt, at=story.arrived_at)
        key = (story.routed.model, decision.worker_id, story.slo_class)
        series = self._by_name.get(key) or self._named(key)
        ttft = decision.ttft
        _ROW.pack_into(
            series.rows,
            series.num_rows * _ROW.size,
            story.arrived_at,
            story.sent_at,
            decision.placed_at,
            UNKNOWN if ttft is None or not decision.is_answered else ttft,
            story.ended_at,
            decision.num_tries,
            decision.output_tokens or 0,
            story.status,
        )
        series.num_rows += 1
        if series.num_rows == MAX_ROWS:
            series.sort_in()

    def series(self, worker_ids: Collection[str]) -> Iterator[tuple[Labels, Series]]:
        """All of them; those of workers that are no more are forgotten."""
        gone = [labels for labels in self._by_labels if labels.worker not in worker_ids]
        for labels in gone:
            del self._by_labels[labels]
        self._by_name.clear()  # what workers serve may have changed
        for labels, series in self._by_labels.items():
            series.sort_in()
            yield labels, series

    def _named(self, key: Key) -> Series:
        """The series of names not seen lately."""
        model, worker, slo_class = key
        if model is not None:
            model = model if self._is_served(model) else OTHER
        labels = Labels(model or NONE, worker, self._class_label(slo_class or NONE))
        if labels not in self._by_labels and len(self._by_labels) >= MAX_SERIES:
            labels = Labels(labels.model, worker, OTHER)
        series = self._by_labels.get(labels)
        if series is None:
            series = self._by_labels[labels] = Series()
        if len(self._by_name) >= MAX_NAMES:
            self._by_name.clear()
        self._by_name[key] = series
        return series

    def _class_label(self, slo_class: str) -> str:
        """The first classes that are seen have series of their own."""
        if slo_class not in self._classes:
            if len(self._classes) >= MAX_CLASSES:
                return OTHER
            self._classes.add(slo_class)
        return slo_class
