"""Requests whose prompt's KV goes to another worker, or comes from one.

Both are admitted like any other: slots for the whole prompt at once, hits found. A request that
sends its KV then runs as usual. One that receives it holds its slots and waits, outside the
batch, until it is told how far its KV has come; it may be given its first token before that,
since the sender sampled it. From there on it is a request like any other, with some tokens
computed and the rest to compute: after a whole transfer just the newest one, after a broken one
whatever is missing.
"""

from dataclasses import dataclass

from expediter.kvcache.pin import Pin
from expediter.request import RequestId
from expediter.scheduling.state import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A request that hands KV over got its slots: `pin` holds them until who transfers lets go.

    The first `num_cached_tokens` of its `num_tokens` are in its blocks already.
    """

    request_id: RequestId
    pin: Pin
    num_tokens: int
    num_cached_tokens: int

    @classmethod
    def of(cls, state: RequestState, pin: Pin) -> "Admission":
        """Of a request that was admitted just now."""
        return cls(
            request_id=state.request_id,
            pin=pin,
            num_tokens=state.num_tokens,
            num_cached_tokens=state.num_computed_tokens,
        )
