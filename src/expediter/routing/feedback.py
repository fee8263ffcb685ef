"""What a policy may learn after its choice.

Choosing is already a record: a policy that learns remembers the request it has just placed.
The rest comes through `observe`, one call an event. A request's story is `FirstToken`, then
`Finished`; or `Failed`, when its worker did not answer or not to the end. A request that is
tried again elsewhere has failed first. Every story must end, else its work is never taken off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from expediter.load import WorkerId
from expediter.routing.prompt import BlockKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The answer has begun, so the prompt is computed, and cached where it was sent."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The answer is complete. What its worker said of it, where it said so."""

    request_id: str
    cached_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The worker broke off. Before the first token, its cache has gained nothing."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAdded:
    """A worker joined, with nothing cached; `capacity_tokens` is its KV memory, if known."""

    worker_id: WorkerId
    capacity_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRemoved:
    """A worker left, or lost its cache; nothing of it matters any more."""

    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The worker dropped these blocks, named as the router names them."""

    worker_id: WorkerId
    keys: Sequence[BlockKey]


Feedback = FirstToken | Finished | Failed | WorkerAdded | WorkerRemoved | Evicted


@runtime_checkable
class Learner(Protocol):
    """A policy that wants feedback; what it has no use for, it ignores."""

    def observe(self, feedback: Feedback) -> None:
        """Take in one event. Requests and workers it does not know are ignored."""
        ...
