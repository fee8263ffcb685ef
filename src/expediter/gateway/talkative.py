"""What is known of a request beyond its answer: for the access log, and at debug level.

Both cost something for each piece of an answer, so the plain sink is used where neither is on.
"""

import logging

import msgspec

from expediter.cluster.decisions import Decision
from expediter.gateway.request import HttpRequest
from expediter.gateway.server import ClientConnection
from expediter.gateway.sink import ClientSink
from expediter.gateway.story import Story

logger = logging.getLogger(__name__)

MAX_SCORES = 64
"""In a header: clients refuse heads of some kilobytes. The best ones are kept."""


class TalkativeSink(ClientSink):
    """Counts bytes; at debug level, says what every candidate scored."""

    __slots__ = ("_shows_scores", "num_bytes")

    def __init__(
        self, connection: ClientConnection, request: HttpRequest, request_id: bytes
    ) -> None:
        super().__init__(connection, request, request_id)
        self._shows_scores = logger.isEnabledFor(logging.DEBUG)
        self.num_bytes = 0

    def placed(self, decision: Decision) -> None:
        """See ResponseSink."""
        super().placed(decision)
        if self._shows_scores:  # which are many in a large fleet
            logger.debug(
                "request %s to %s: %s, %d of %d tokens matched, scores %s",
                decision.request_id,
                decision.worker_id,
                decision.reason,
                decision.matched_tokens,
                decision.num_tokens,
                dict(decision.scores),
            )

    def write(self, data: bytes) -> None:
        """See ResponseSink."""
        self.num_bytes += len(data)
        super().write(data)

    def tell(self, story: Story) -> None:
        """See ClientSink."""
        super().tell(story)
        story.num_bytes = self.num_bytes

    def _own_lines(self) -> bytes:
        lines = super()._own_lines()
        if self._shows_scores and self.decision is not None:
            return b"x-expediter-scores: %b\r\n%b" % (_scores(self.decision), lines)
        return lines


def _scores(decision: Decision) -> bytes:
    best = sorted(decision.scores.items(), key=lambda item: -item[1])[:MAX_SCORES]
    return msgspec.json.encode({name: round(score, 3) for name, score in best})
