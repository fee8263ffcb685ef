"""What an answer says that it used."""

import re

from expediter.gateway.sink import ClientSink

_USAGE_BYTES = 4096  # a usage object is in the last part of an answer
# Not in what a model writes: quotes within a JSON string are escaped.
_TOTAL_TOKENS = re.compile(rb'"total_tokens"\s*:\s*(\d{1,12})\b')


class MeteredSink(ClientSink):
    """A sink whose answer is counted."""

    def total_tokens(self) -> int | None:
        """Tokens of prompt and answer together; None if the answer does not say."""
        tail = self._before_last[-_USAGE_BYTES:] + self._last[-_USAGE_BYTES:]
        found = _TOTAL_TOKENS.findall(tail)
        return int(found[-1]) if found else None
