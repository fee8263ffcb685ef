"""/v1/completions and /v1/chat/completions: from a body to sequences at work."""

import itertools
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from expediter.clock import Clock
from expediter.errors import WorkerUnavailable
from expediter.request import Request, RequestId, SamplingParams
from expediter.worker.answers import Answer, ChatAnswer, CompletionAnswer, Envelope
from expediter.worker.body import decode_body, read_body
from expediter.worker.generation import Choice, Generation
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request's bytes, when they were here, and the client's name for it or a new one."""

    body: bytes
    time: float
    request_id: str


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
        arrival = await self._receive(http)
        request = decode_body(arrival.body, CompletionRequest)
        self._model.require(request.model)
        prompts = await self._reader.completion(request, num_bytes=len(arrival.body))
        name = request.request_id or arrival.request_id
        answer = CompletionAnswer(
            request, envelope=self._envelope(f"cmpl-{name}"), tokenizer=self._model.tokenizer
        )
        return self._generate(request, arrival, prompts=prompts, answer=answer)

    async def chat(self, http: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        arrival = await self._receive(http)
        request = decode_body(arrival.body, ChatRequest)
        self._model.require(request.model)
        prompt = await self._reader.chat(request, num_bytes=len(arrival.body))
        name = request.request_id or arrival.request_id
        answer = ChatAnswer(request, envelope=self._envelope(f"chatcmpl-{name}"))
        return self._generate(request, arrival, prompts=[prompt], answer=answer)

    async def _receive(self, http: HttpRequest) -> Arrival:
        if self._worker.is_draining:
            raise WorkerUnavailable("this worker is shutting down")
        body = await read_body(http, max_bytes=self._max_body_bytes)
        request_id = http.headers.get("x-request-id") or uuid.uuid4().hex
        return Arrival(body=body, time=self._clock(), request_id=request_id)

    def _envelope(self, answer_id: str) -> Envelope:
        return Envelope(answer_id, model=self._model.name, created=int(time.time()))

    def _generate(
        self,
        request: AnyGenerationRequest,
        arrival: Arrival,
        *,
        prompts: Sequence[Prompt],
        answer: Answer,
    ) -> Response:
        choices: list[Choice] = []
        for prompt in prompts:
            max_tokens = self._max_tokens(request, prompt)
            for choice in range(request.num_choices):
                sampling = sampling_params(request, max_tokens=max_tokens, choice=choice)
                sequence = self._sequence(request, arrival, prompt=prompt, sampling=sampling)
                choices.append(self._choice(request, sequence, index=len(choices), prompt=prompt))
        is_streamed = bool(request.stream)
        generation = Generation(self._worker, choices, is_streamed=is_streamed)
        generation.start()
        return GenerationResponse(
            generation, answer=answer, is_streamed=is_streamed, request_id=arrival.request_id
        )

    def _max_tokens(self, request: AnyGenerationRequest, prompt: Prompt) -> int:
        is_chat = isinstance(request, ChatRequest)
        return num_new_tokens(
            prompt,
            wanted=request.token_limit,
            default=None if is_chat else DEFAULT_COMPLETION_TOKENS,
            limit=self._max_num_tokens,
        )

    def _sequence(
        self,
        request: AnyGenerationRequest,
        arrival: Arrival,
        *,
        prompt: Prompt,
        sampling: SamplingParams,
    ) -> Request:
        # A client may use a name twice; the worker must not.
        request_id = RequestId(f"{arrival.request_id}-{next(self._serials)}")
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            arrival_time=arrival.time,
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
        )

    def _choice(
        self, request: AnyGenerationRequest, sequence: Request, *, index: int, prompt: Prompt
    ) -> Choice:
        processor = OutputProcessor(
            self._model.tokenizer,
            sequence.sampling,
            skip_special_tokens=request.skip_special_tokens is not False,
        )
        timer = SequenceTimer(self._stats, arrival_time=sequence.arrival_time, clock=self._clock)
        return Choice(sequence, index=index, prompt=prompt, processor=processor, timer=timer)
