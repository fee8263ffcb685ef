"""Which conversation a request belongs to, where its caller says so.

The session header comes first, then the body's `user`, as OpenAI's API has it. Neither is trusted
with anything but placement.
"""

import msgspec

from expediter.gateway.openai import Facts
from expediter.gateway.request import HttpRequest

MAX_SESSION_BYTES = 1024


def session_of(request: HttpRequest, facts: Facts, *, header: bytes) -> str | None:
    """The session's name; None where none is given, or one too long to be a name."""
    name = request.first_values.get(header)
    if name and len(name) <= MAX_SESSION_BYTES:
        return name.decode("latin-1")
    if not facts.user:
        return None
    user = bytes(facts.user)
    if not 2 < len(user) <= MAX_SESSION_BYTES or not user.startswith(b'"'):
        return None
    try:
        return msgspec.json.decode(user, type=str)
    except msgspec.MsgspecError:
        return None
