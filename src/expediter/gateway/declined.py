"""A 503 that says the request was not begun, so that another worker may have it.

Few do. Recognised are, by the message of the error:

- Expediter's worker that shuts down;
- vLLM while it changes its number of ranks, and with a full queue, which its own text calls a
  case for "a different instance" (`vllm/exceptions.py`).

Every other 503 may come from the middle of an execution, and is the client's answer.
"""

from expediter.cluster.client import BodyKind, ResponseHead

MAX_BYTES = 4096
_MESSAGES = (
    b"this worker is shutting down",
    b"The model is currently scaling.",
    b"The engine is currently busy and cannot accept new requests.",
    b"The engine has reached its prefill token backlog limit.",
)


def may_decline(head: ResponseHead) -> bool:
    """Whether the body must be seen before anything of the answer goes out."""
    return head.status == 503 and head.body is BodyKind.LENGTH and 0 < head.length <= MAX_BYTES


def declines(body: bytes) -> bool:
    """Whether the error says that the worker did not take the request."""
    return any(message in body for message in _MESSAGES)
