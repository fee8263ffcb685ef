"""/v1/completions and /v1/chat/completions: from a body to sequences at work."""

import itertools
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from expediter.clock import Clock
from expediter.errors import RequestError, UnsupportedParameter, WorkerUnavailable
from expediter.request import KVFlow, Request, RequestId, SamplingParams
from expediter.worker.answers import Answer, ChatAnswer, CompletionAnswer, Envelope
from expediter.worker.body import decode_body, read_body
from expediter.worker.generation import Choice, Generation
from expediter.worker.handover.legs import FIELD, Leg, leg_of
from expediter.worker.output import OutputProcessor
from expediter.worker.prompts import Prompt, PromptReader, ServedModel, num_new_tokens
from expediter.worker.protocol import (
    DEFAULT_COMPLETION_TOKENS,
    AnyGenerationRequest,
    ChatRequest,
    CompletionRequest,
    sampling_params,
)
from expediter.worker.response import GenerationResponse
from expediter.worker.stats import SequenceTimer, ServingStats
from expediter.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Call:
    """A request, its client's name for it or a new one, and when its last byte came."""

    request: AnyGenerationRequest
    request_id: str
    arrival_time: float


class GenerationEndpoints:
    """Answers generation requests with one worker; `clock` is the scheduler's."""

    def __init__(
        self,
        worker: Worker,
        *,
        model: ServedModel,
        stats: ServingStats,
        clock: Clock,
        max_body_bytes: int,
    ) -> None:
        self._worker = worker
        self._model = model
        self._reader = PromptReader(model)
        self._stats = stats
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._serials = itertools.count()
        kv_cache = worker.scheduler.kv_cache
        # The last token is returned, never computed.
        fits_memory = kv_cache.num_total_blocks * kv_cache.block_size + 1
        self._max_num_tokens = min(model.max_model_len, fits_memory)

    async def completions(self, http: HttpRequest) -> Response:
        """POST /v1/completions."""
        body, arrival_time = await self._receive(http)
        request = decode_body(body, CompletionRequest)
        self._model.require(request.model)
        prompts = await self._reader.completion(request, num_bytes=len(body))
        call = Call(request, _request_id(http, request), arrival_time)
        answer = CompletionAnswer(
            request,
            envelope=self._envelope(f"cmpl-{call.request_id}"),
            tokenizer=self._model.tokenizer,
        )
        return self._generate(call, prompts=prompts, answer=answer)

    async def chat(self, http: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        body, arrival_time = await self._receive(http)
        request = decode_body(body, ChatRequest)
        self._model.require(request.model)
        prompt = await self._reader.chat(request, num_bytes=len(body))
        call = Call(request, _request_id(http, request), arrival_time)
        answer = ChatAnswer(request, envelope=self._envelope(f"chatcmpl-{call.request_id}"))
        return self._generate(call, prompts=[prompt], answer=answer)

    async def _receive(self, http: HttpRequest) -> tuple[bytes, float]:
        """The body, and when it was here."""
        if self._worker.is_draining:
            raise WorkerUnavailable("this worker is shutting down")
        body = await read_body(http, max_bytes=self._max_body_bytes)
        return body, self._clock()

    def _envelope(self, answer_id: str) -> Envelope:
        return Envelope(answer_id, model=self._model.name, created=int(time.time()))

    def _generate(self, call: Call, *, prompts: Sequence[Prompt], answer: Answer) -> Response:
        request = call.request
        leg = self._leg(request, num_prompts=len(prompts))
        choices: list[Choice] = []
        for prompt in prompts:
            max_tokens = self._max_tokens(request, prompt)
            for choice in range(request.num_choices):
                sampling = sampling_params(request, max_tokens=max_tokens, choice=choice)
                sequence = self._sequence(call, prompt=prompt, sampling=sampling, leg=leg)
                choices.append(
                    self._choice(call, sequence, index=len(choices), prompt=prompt, leg=leg)
                )
                leg = None
        is_streamed = bool(request.stream)
        generation = Generation(self._worker, choices, is_streamed=is_streamed)
        generation.start()
        return GenerationResponse(
            generation, answer=answer, is_streamed=is_streamed, request_id=call.request_id
        )

    def _leg(self, request: AnyGenerationRequest, *, num_prompts: int) -> Leg | None:
        """What the first sequence has to do with another worker."""
        params = request.kv_transfer_params
        if params is None or params.flow is KVFlow.LOCAL:
            return None
        if not self._worker.hands_over:
            raise UnsupportedParameter(
                "this worker moves no KV; worker.transfer.enabled is false", param=FIELD
            )
        if num_prompts != 1:
            raise RequestError("KV moves for one prompt at a time", param=FIELD)
        return leg_of(params, new_name=uuid.uuid4().hex, num_choices=request.num_choices)

    def _max_tokens(self, request: AnyGenerationRequest, prompt: Prompt) -> int:
        is_chat = isinstance(request, ChatRequest)
        return num_new_tokens(
            prompt,
            wanted=request.token_limit,
            default=None if is_chat else DEFAULT_COMPLETION_TOKENS,
            limit=self._max_num_tokens,
        )

    def _sequence(
        self, call: Call, *, prompt: Prompt, sampling: SamplingParams, leg: Leg | None
    ) -> Request:
        return Request(
            # A client may use a name twice; the worker must not.
            request_id=RequestId(f"{call.request_id}-{next(self._serials)}"),
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            arrival_time=call.arrival_time,
            priority=call.request.priority or 0,
            cache_salt=call.request.cache_salt,
            kv_flow=KVFlow.LOCAL if leg is None else call.request.kv_flow,
        )

    def _choice(
        self, call: Call, sequence: Request, *, index: int, prompt: Prompt, leg: Leg | None
    ) -> Choice:
        processor = OutputProcessor(
            self._model.tokenizer,
            sequence.sampling,
            skip_special_tokens=call.request.skip_special_tokens is not False,
        )
        timer = SequenceTimer(self._stats, arrival_time=sequence.arrival_time, clock=self._clock)
        return Choice(
            sequence, index=index, prompt=prompt, processor=processor, timer=timer, leg=leg
        )


def _request_id(http: HttpRequest, request: AnyGenerationRequest) -> str:
    """The header's, else the body's, as in vLLM; else a new one."""
    return http.headers.get("x-request-id") or request.request_id or uuid.uuid4().hex
