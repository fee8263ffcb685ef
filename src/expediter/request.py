"""What a caller asks of a worker, and what the worker says back.

A request is a row of tokens and the rules to extend it. Everything else here either names
what changes its KV (adapter, salt, images) or how to pick the next token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

import msgspec
from msgspec.structs import force_setattr

RequestId = NewType("RequestId", str)


class FinishReason(StrEnum):
    """Why a request ended; the first two are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class KVFlow(StrEnum):
    """Where a prompt's KV goes to, or comes from, when two workers serve one request."""

    LOCAL = "local"
    SENDS = "sends"  # computes the prompt, for another worker to go on from there
    RECEIVES = "receives"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is picked and when to stop. Field names and meanings are vLLM's.

    `temperature` 0 is greedy. `top_k` 0 keeps every token. `num_logprobs` None returns none,
    0 only the sampled token's, n also the n likeliest.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiModalItem:
    """An image or audio clip in the prompt: tokens [offset, offset + num_tokens) stand for it."""

    content_hash: str
    offset: int
    num_tokens: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to extend.

    Live prompts carry token ids. Simulated ones carry `block_hashes` instead: the names of
    every full block of prompt and output at the worker's block size, with `num_prompt_tokens`
    saying how long the prompt is; `prompt_token_ids` is then empty. Without `reports_progress`
    the outputs between its first and its last token may be left out.
    """

    request_id: RequestId
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    arrival_time: float = 0.0
    priority: int = 0  # smaller runs first, as in vLLM
    lora_name: str | None = None
    cache_salt: str | None = None
    multimodal: tuple[MultiModalItem, ...] = ()
    block_hashes: Sequence[bytes] | None = None
    num_prompt_tokens: int = -1
    reports_progress: bool = True
    kv_flow: KVFlow = KVFlow.LOCAL

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 0:
            force_setattr(self, "num_prompt_tokens", len(self.prompt_token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and its log probability (natural log) under the model, before temperature."""

    token_id: int
    logprob: float
    rank: int  # 1 is the likeliest


class SampledToken(msgspec.Struct, frozen=True, kw_only=True):
    """One new token. `logprobs` holds the sampled token first, then the likeliest ones."""

    token_id: int
    logprobs: tuple[TokenLogprob, ...] = ()


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step gave one request. The last one carries `finish_reason`.

    `num_output_tokens` counts all tokens so far. `scheduled_time` is when the request first
    joined a batch, on the scheduler's clock.
    """

    request_id: RequestId
    tokens: Sequence[SampledToken]
    num_cached_tokens: int
    num_output_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the stop token that ended it, if one did
    scheduled_time: float | None = None
