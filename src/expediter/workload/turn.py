"""One request of a workload: what is asked, when, and how long the answer is."""

import msgspec

from expediter.request import Request, RequestId, SamplingParams
from expediter.workload.transcript import Transcript


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its answer, and when the prompt is sent, in seconds from the start.

    A workload is an iterable of turns whose `arrival_time` never falls. A turn with a
    `think_time` closes a loop: it stands right behind the turn of its `session` that it follows,
    has the same `arrival_time`, and is sent `think_time` seconds after that one's answer ends.

    `transcript` is the prompt and, as its last segment, the answer. `label` is the class in
    reports; `tenant` is who pays, and does not keep texts apart.
    """

    arrival_time: float
    transcript: Transcript
    label: str = "all"
    session: str | None = None
    tenant: str | None = None
    think_time: float | None = None
    priority: int = 0

    @property
    def prompt(self) -> Transcript:
        """What is sent."""
        assert self.transcript.before is not None
        return self.transcript.before

    @property
    def num_prompt_tokens(self) -> int:
        """How long the prompt is."""
        return self.transcript.num_tokens - self.transcript.segment.num_tokens

    @property
    def num_output_tokens(self) -> int:
        """How long the answer is."""
        return self.transcript.segment.num_tokens

    def request(
        self, request_id: RequestId, *, block_size: int, arrival_time: float | None = None
    ) -> Request:
        """The request for a simulated worker: names of prompt and answer blocks, no tokens."""
        return Request(
            request_id=request_id,
            prompt_token_ids=(),
            sampling=SamplingParams(max_tokens=self.num_output_tokens, ignore_eos=True),
            arrival_time=self.arrival_time if arrival_time is None else arrival_time,
            priority=self.priority,
            block_hashes=self.transcript.block_hashes(block_size),
            num_prompt_tokens=self.num_prompt_tokens,
        )
