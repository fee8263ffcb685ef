"""What a client may send: OpenAI's bodies with vLLM's extensions, checked field by field.

A field's type says what it may hold; `check` says what fields may not be together.
"""

from typing import Annotated, Any, TypeVar

import msgspec

from expediter.errors import RequestError, UnsupportedParameter
from expediter.request import KVFlow, SamplingParams
from expediter.worker.handover.legs import FIELD, KVTransferParams

MAX_CHOICES = 128
MAX_SEQUENCES = 1024  # prompts times choices
MAX_LOGPROBS = 20  # alternatives a token
DEFAULT_COMPLETION_TOKENS = 16
VISIBLE_ASCII = "^[!-~]{1,256}$"  # what may stand in a header

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
TokenCount = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class StreamOptions(msgspec.Struct):
    """`continuous_usage_stats` puts the counts so far on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """A request's JSON."""

    def check(self) -> None:
        """Raise RequestError for what no single field's type can tell."""


class GenerationRequest(Body, kw_only=True):
    """What both APIs share."""

    model: str | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] | None = None
    seed: Int64 | None = None
    stop: StopString | Annotated[list[StopString], msgspec.Meta(max_length=64)] | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    priority: Int64 | None = None
    request_id: Annotated[str, msgspec.Meta(pattern=VISIBLE_ASCII)] | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None
    kv_transfer_params: KVTransferParams | None = None

    @property
    def num_choices(self) -> int:
        """Answers a prompt."""
        return self.n or 1

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer, as far as the client says."""
        return self.max_tokens

    @property
    def kv_flow(self) -> KVFlow:
        """Where the prompt's KV goes to or comes from."""
        params = self.kv_transfer_params
        return KVFlow.LOCAL if params is None else params.flow

    def check(self) -> None:
        """Raise RequestError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is allowed only with stream", param="stream_options")
        if self.best_of is not None and self.best_of != self.num_choices:
            raise UnsupportedParameter("best_of must equal n", param="best_of")
        if self.kv_transfer_params is not None:
            self.kv_transfer_params.check()
        if self.kv_flow is KVFlow.SENDS:
            self._check_prefill()

    def _check_prefill(self) -> None:
        if self.token_limit != 1 or self.num_choices != 1 or self.stream:
            raise RequestError(
                "do_remote_decode is allowed only with max_tokens 1, n 1 and no stream", param=FIELD
            )


class CompletionRequest(GenerationRequest, kw_only=True):
    """The body of /v1/completions. `prompt` is a text, token ids, or a list of either."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool = True

    @property
    def num_logprobs(self) -> int | None:
        """As `logprobs` says."""
        return self.logprobs

    def check(self) -> None:
        """Also raises for what `echo` cannot do."""
        super().check()
        if self.echo and self.logprobs is not None:
            raise UnsupportedParameter(
                "echo is allowed only without logprobs: prompt tokens have none", param="echo"
            )


class ChatRequest(GenerationRequest, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """As `logprobs` and `top_logprobs` say together."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens` is the newer name and wins."""
        return self.max_completion_tokens or self.max_tokens

    def check(self) -> None:
        """Also raises for what the chat template cannot do."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs is allowed only with logprobs", param="top_logprobs")
        if self.echo:
            raise UnsupportedParameter("echo must be false for chats", param="echo")
        check_generation_prompt(self.add_generation_prompt, self.continue_final_message)


class TokenizeRequest(Body, kw_only=True):
    """The body of /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool | None = None  # by default with a prompt and not with messages
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Raise RequestError unless exactly one text is given."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", param="prompt")
        check_generation_prompt(self.add_generation_prompt, self.continue_final_message)


class DetokenizeRequest(Body, kw_only=True):
    """The body of /detokenize."""

    tokens: list[TokenId]
    model: str | None = None


AnyGenerationRequest = CompletionRequest | ChatRequest
AnyBody = TypeVar("AnyBody", bound=Body)


def check_generation_prompt(add_generation_prompt: bool | None, continues: bool) -> None:
    """A final message that goes on is not followed by the head of another."""
    if add_generation_prompt and continues:
        raise RequestError(
            "continue_final_message is allowed only without add_generation_prompt",
            param="continue_final_message",
        )


def sampling_params(
    request: AnyGenerationRequest, *, max_tokens: int, choice: int
) -> SamplingParams:
    """How to sample choice number `choice`; with a seed each choice has its own.

    Raises RequestError if `min_tokens` is more than `max_tokens`.
    """
    if (request.min_tokens or 0) > max_tokens:
        raise RequestError(
            f"min_tokens is {request.min_tokens} and may be at most max_tokens, {max_tokens}",
            param="min_tokens",
        )
    stop = request.stop or ()
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        seed=None if request.seed is None else request.seed + choice,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        ignore_eos=bool(request.ignore_eos),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        num_logprobs=request.num_logprobs,
    )
