"""What a class of requests is promised."""

from collections.abc import Mapping

import msgspec

from expediter.config import NotNegative

ALL = "all"
"""The label that stands for every class."""


class Objective(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A class's service level in seconds; what is not given is not asked for."""

    ttft: NotNegative | None = None
    tpot: NotNegative | None = None
    e2e: NotNegative | None = None

    def is_met(self, *, ttft: float, tpot: float | None, e2e: float) -> bool:
        """Whether an answer was fast enough; one of a single token has no `tpot`."""
        return (
            (self.ttft is None or ttft <= self.ttft)
            and (self.tpot is None or (tpot or 0.0) <= self.tpot)
            and (self.e2e is None or e2e <= self.e2e)
        )


class ClassObjective(
    Objective, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """The service level of the class `label`, which a file calls `class`."""

    label: str = msgspec.field(name="class")


class Objectives:
    """Objectives by label; the one of "all" holds for every label that has none."""

    def __init__(self, by_label: Mapping[str, Objective]) -> None:
        self._by_label = by_label
        self._default = by_label.get(ALL, Objective())

    def of(self, label: str) -> Objective:
        """The objective of a class."""
        return self._by_label.get(label, self._default)


def objectives(
    each: tuple[ClassObjective, ...], *, default: Objective | None = None
) -> dict[str, Objective]:
    """By label; `default` is for the labels that have none."""
    found: dict[str, Objective] = {} if default is None else {ALL: default}
    return found | {one.label: one for one in each}
