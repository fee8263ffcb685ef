"""What a policy sees: the request, the workers that may take it, and how much each has cached.

A policy never sees a worker itself. The match is made once and handed over with the view.
"""

from collections.abc import Mapping, Sequence

import msgspec

from expediter.load import WorkerId
from expediter.routing.prompt import Prompt


class RoutedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts of a request that placement may use; `prompt` is None where none is compared.

    `body_tokens` estimates its length from the body's; `max_output_tokens` is the caller's limit,
    if given. `session` is the caller's name for its conversation: the session header, else the
    user.
    """

    request_id: str
    model: str | None = None
    prompt: Prompt | None = None
    body_tokens: int = 0
    max_output_tokens: int | None = None
    session: str | None = None

    @property
    def num_tokens(self) -> int:
        """The prompt's length in tokens; an estimate where they are not known."""
        return self.prompt.num_tokens if self.prompt is not None else self.body_tokens


class WorkerView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that may be chosen. `load_tokens` is work given to it and not yet done.

    Of it, `prefill_tokens` are of prompts that are not computed.
    """

    worker_id: WorkerId
    load_tokens: float = 0.0
    num_requests: int = 0
    prefill_tokens: float = 0.0


class ClusterView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The candidates, never empty, and the prompt tokens that each already holds."""

    workers: Sequence[WorkerView]
    matched: Mapping[WorkerId, int] = msgspec.field(default_factory=dict)

    def matched_tokens(self, worker_id: WorkerId) -> int:
        """How many of the prompt's first tokens the worker holds."""
        return self.matched.get(worker_id, 0)


class Choice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker for a request, and why. `scores` has every candidate's; more is better."""

    worker_id: WorkerId
    matched_tokens: int
    reason: str
    scores: Mapping[WorkerId, float] = msgspec.field(default_factory=dict)
