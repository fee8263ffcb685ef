"""The hand-over of KV between workers is the fleet's own business.

`kv_transfer_params` names blocks of another worker, and wrong ones kill the engine that reads
them. A client's request must not have the field, not even in a body that only a more lenient
reader than ours takes for JSON.
"""

import json

from expediter.errors import RequestError
from expediter.gateway.openai import Fields

FIELD = "kv_transfer_params"


def require_no_transfer(body: bytes, fields: Fields | None) -> None:
    """Raises RequestError if the body has the field; `fields` is None if it could not be read."""
    if fields is not None:
        if not fields.kv_transfer_params:
            return
    elif not _may_have_field(body):
        return
    raise RequestError(f"{FIELD} is not for clients to set", param=FIELD)


def _may_have_field(body: bytes) -> bool:
    """Whether any reader could find the field: by its name, or a name with escaped letters."""
    text = body.decode(json.detect_encoding(body), "replace")
    return FIELD in text or "\\u00" in text
