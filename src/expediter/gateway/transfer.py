"""The hand-over of KV between workers is the fleet's own business.

`kv_transfer_params` names blocks of another worker, and wrong ones kill the engine that reads
them; SGLang's `bootstrap_host` names a host to connect to. A client's request must not have such a
field, not even in a body that only a more lenient reader than ours takes for JSON.
"""

import json

from expediter.errors import RequestError
from expediter.gateway.openai import Facts

FIELD = "kv_transfer_params"
FIELDS = (FIELD, "bootstrap_host", "bootstrap_port", "bootstrap_room")


def require_no_transfer(body: bytes, facts: Facts | None) -> None:
    """Raises RequestError if the body has one; `facts` is None if it could not be read."""
    if facts is not None:
        one, host = facts.kv_transfer_params, facts.bootstrap_host
        if not (one or host or facts.bootstrap_port or facts.bootstrap_room):
            return  # as nearly always
        found = [name for name in FIELDS if getattr(facts, name)]
    else:
        found = _possible_fields(body)
    if found:
        raise RequestError(f"{found[0]} is not for clients to set", param=found[0])


def _possible_fields(body: bytes) -> list[str]:
    """The fields that any reader could find: by their names, or by names with escaped letters."""
    text = body.decode(json.detect_encoding(body), "replace")
    return [name for name in FIELDS if name in text or "\\u00" in text]
