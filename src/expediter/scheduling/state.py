"""A request on its way through the scheduler."""

from collections.abc import Sequence

from expediter.kvcache.sequence import KVSequence
from expediter.request import FinishReason, Request, RequestId, RequestOutput, SampledToken


class RequestState:
    """`num_computed_tokens` catches up with `num_tokens`; that is all of a request's progress.

    A new prompt, a prompt half computed, a decode and a request that lost its blocks differ
    only in how far apart the two are. `rank` orders requests by seniority: the smallest is
    served first and preempted last.
    """

    __slots__ = (
        "ends_at",
        "is_running",
        "max_num_tokens",
        "num_cached_tokens",
        "num_certain_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "rank",
        "request",
        "request_id",
        "scheduled_time",
        "sequence",
        "serial",
        "stop_token_ids",
        "tells_from",
        "was_admitted",
    )

    def __init__(
        self,
        request: Request,
        *,
        sequence: KVSequence,
        serial: int,
        rank: tuple[int, int],
        eos_token_ids: frozenset[int],
    ) -> None:
        self.request = request
        self.request_id: RequestId = request.request_id  # the caller's name for it
        self.sequence = sequence
        self.serial = serial
        self.rank = rank
        self.is_running = False
        self.was_admitted = False  # whether it ever was; if it waits, it was preempted
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None  # of the prompt, when first admitted
        self.scheduled_time: float | None = None  # when first admitted
        self.num_prompt_tokens = request.num_prompt_tokens
        self.max_num_tokens = request.num_prompt_tokens + request.sampling.max_tokens
        self.stop_token_ids = _stop_token_ids(request, eos_token_ids)
        # A stop token may end it at any time; else it is sure to reach its end.
        self.ends_at = 0  # as a decode: the step that is sure to be made (`decodes.py`)
        self.num_certain_tokens = 0 if self.stop_token_ids else self.max_num_tokens
        # Whether every token matters, or only the first and the last, whose time is known.
        is_eager = request.reports_progress or bool(self.stop_token_ids)
        # As computed tokens: one less than there are then.
        self.tells_from = 0 if is_eager else self.max_num_tokens - 1

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and output."""
        return self.sequence.num_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens whose KV is still to compute."""
        return self.sequence.num_tokens - self.num_computed_tokens

    @property
    def is_decode(self) -> bool:
        """One token is left to compute, so the next step gives a new one for the price of one."""
        return self.sequence.num_tokens - self.num_computed_tokens == 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.sequence.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens; empty for a simulated request."""
        return self.sequence.token_ids[self.num_prompt_tokens :]

    def finish_reason(self, last: SampledToken) -> FinishReason | None:
        """Why the request ends with `last`, its newest token, or None."""
        if self.stop_token_ids and self.is_stop(last.token_id):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.sequence.num_tokens >= self.max_num_tokens else None

    def output(
        self, tokens: Sequence[SampledToken], finish_reason: FinishReason | None
    ) -> RequestOutput:
        """What its sink gets for its newest `tokens`."""
        assert self.num_cached_tokens is not None, "tokens before admission"
        return RequestOutput(
            request_id=self.request.request_id,
            tokens=tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.sequence.num_tokens - self.num_prompt_tokens,
            finish_reason=finish_reason,
            stop_token_id=tokens[-1].token_id if finish_reason is FinishReason.STOP else None,
            scheduled_time=self.scheduled_time,
        )

    def is_stop(self, token_id: int) -> bool:
        """Whether `token_id`, if it is the newest token, ends the request."""
        is_due = self.num_output_tokens >= self.request.sampling.min_tokens
        return is_due and token_id in self.stop_token_ids


def _stop_token_ids(request: Request, eos_token_ids: frozenset[int]) -> frozenset[int]:
    """What may end the request; a simulated request's token ids mean nothing."""
    if request.block_hashes is not None:
        return frozenset()
    sampling = request.sampling
    return sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else eos_token_ids)
