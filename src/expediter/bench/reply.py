"""What became of one request to an endpoint, and when. Times are the event loop's, in seconds."""

import msgspec

from expediter.bench.stream import Event, Usage, error_kind


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request: the path, the body, and what besides it says who asks."""

    path: str
    body: bytes
    headers: dict[str, str] = {}


class Reply(msgspec.Struct, kw_only=True):
    """Filled while the answer comes. `token_times` are of the chunks that carry output."""

    sent_at: float
    ended_at: float = 0.0
    status: int = 0
    error: str | None = None
    worker: str | None = None
    usage: Usage | None = None
    token_times: list[float] = []
    parts: list[str] = []
    is_finished: bool = False  # the endpoint said that the answer is complete

    @property
    def is_complete(self) -> bool:
        """Whether there is an answer, all of it."""
        return self.error is None and self.status == 200

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.parts)

    @property
    def num_output_tokens(self) -> int:
        """As the endpoint counts them; chunks where it does not."""
        return (self.usage.completion_tokens if self.usage else 0) or len(self.token_times)

    @property
    def ttft(self) -> float | None:
        """Seconds to the first output; to the end, if nothing came that shows."""
        if not self.is_complete:
            return None
        return (self.token_times[0] if self.token_times else self.ended_at) - self.sent_at

    @property
    def tpot(self) -> float | None:
        """Seconds from one token to the next, in the mean; None for an answer of one."""
        steps = self.num_output_tokens - 1
        if not self.is_complete or steps < 1 or not self.token_times:
            return None
        return (self.token_times[-1] - self.token_times[0]) / steps

    @property
    def e2e(self) -> float | None:
        """Seconds to the last output."""
        if not self.is_complete:
            return None
        return (self.token_times[-1] if self.token_times else self.ended_at) - self.sent_at

    def take(self, event: Event, *, now: float) -> None:
        """One more event."""
        if event.error is not None:
            self.error = self.error or error_kind(event.error, self.status)
        if event.has_output:
            self.token_times.append(now)
            self.parts.append(event.text)
        self.is_finished = self.is_finished or event.is_last
        if event.usage is not None:
            self.usage = event.usage

    def end(self, *, now: float, error: str | None = None) -> "Reply":
        """Nothing more will come; one that stops in the middle of an answer is an error too."""
        self.ended_at = now
        self.error = self.error or error
        if self.is_complete and not self.is_finished:
            self.error = "truncated"
        return self
