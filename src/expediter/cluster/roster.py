"""Who may get requests: found once, and again when something about a worker has changed.

With hundreds of workers, to look at each of them for every request would cost more than the rest
of the request. Members and their circuit breakers say when they change. While a breaker is not
closed, time alone changes what it lets through, and nothing is remembered.
"""

from collections.abc import Callable, Mapping, Sequence

from expediter.cluster.member import Member, WorkerStatus
from expediter.load import WorkerId

MAX_MODELS = 1024


class Roster:
    """The workers that are ready, all of them and by model. Its lists are not to be changed."""

    def __init__(self, members: Mapping[WorkerId, Member]) -> None:
        self._members = members
        self._ready: Sequence[Member] | None = None
        self._adapters: set[str] | None = None
        self._serving: dict[str, Sequence[Member]] = {}

    def changed(self) -> None:
        """Somebody came, went or changed."""
        self._ready = self._adapters = None
        self._serving.clear()

    def ready(self) -> Sequence[Member]:
        """The workers that may get requests now."""
        if self._ready is not None:
            return self._ready
        found = self._find(lambda _: True)
        if self._may_be_remembered():
            self._ready = found
        return found

    def serving(self, model: str) -> Sequence[Member]:
        """Of these the ones that say they serve the model; all of them, if none does."""
        known = self._serving.get(model)
        if known is not None:
            return known
        found = self._find(lambda member: model in member.models)
        if not found:
            return self.ready()
        if self._may_be_remembered() and len(self._serving) < MAX_MODELS:
            self._serving[model] = found
        return found

    def is_adapter(self, model: str) -> bool:
        """Whether workers say that the model is an adapter of another."""
        if self._adapters is None:
            cards = (card for m in self._members.values() for card in m.models.values())
            self._adapters = {card.id for card in cards if card.parent is not None}
        return model in self._adapters

    def _find(self, is_meant: Callable[[Member], bool]) -> Sequence[Member]:
        return [
            m
            for m in self._members.values()
            if m.health is WorkerStatus.UP
            and not m.is_draining
            and m.breaker.allows()
            and is_meant(m)
        ]

    def _may_be_remembered(self) -> bool:
        return all(member.breaker.is_closed for member in self._members.values())
