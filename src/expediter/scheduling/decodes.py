"""The running requests that decode, and what a step has to know of them.

Nothing of a decode changes from step to step but how far it is, and all of them go at one pace.
So what they have in common is kept, not looked for: how many tokens they have computed together,
when the first comes to its end, who has come to the end of its blocks. Only what changes is
looked at.
"""

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expediter.scheduling.state import RequestState

_by_rank = attrgetter("rank")
_by_end = attrgetter("ends_at")


class Decodes:
    """`members` have one token to compute. Whoever else runs has `begun`, and is none yet.

    All members make every step. `num_steps` is how many were ever made, and `num_context_tokens`
    what the members have computed together; `horizon.advance` counts on.
    """

    def __init__(self) -> None:
        self.num_context_tokens = 0
        self.begun: dict[RequestState, None] = {}
        self.edge: list[RequestState] = []  # whose blocks are full, oldest first
        self.members: dict[RequestState, None] = {}
        self.num_steps = 0
        self._first_end: int | None = None  # the step that is a member's last; None if not known

    def num_left(self) -> int:
        """Steps until one of the members may end."""
        if self._first_end is None:
            self._first_end = min(map(_by_end, self.members))
        num_left = self._first_end - self.num_steps
        return num_left if num_left > 0 else 1

    def add(self, state: "RequestState") -> None:
        """It runs from now on."""
        self.begun[state] = None

    def remove(self, state: "RequestState") -> None:
        """It does not run any more."""
        if state not in self.members:
            del self.begun[state]
            return
        del self.members[state]
        self.num_context_tokens -= state.num_computed_tokens
        if state.ends_at == self._first_end:
            self._first_end = None

    def take_due(self) -> "list[RequestState]":
        """Let in who decodes by now; them and those that need a slot, oldest first."""
        due, self.edge = self.edge, []
        if self.begun:
            joining = [state for state in self.begun if state.is_decode]
            for state in joining:
                self._join(state)
            due += joining
            if len(due) > 1:
                due.sort(key=_by_rank)
        return due

    def _join(self, state: "RequestState") -> None:
        del self.begun[state]
        self.members[state] = None
        self.num_context_tokens += state.num_computed_tokens
        end = state.ends_at = self.num_steps + state.num_certain_tokens - state.sequence.num_tokens
        if self._first_end is not None and end < self._first_end:
            self._first_end = end
