"""Answers as OpenAI's API writes them, whole or in chunks, with vLLM's extra fields.

What all chunks of an answer begin with is encoded once.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from expediter.tokenizer import Tokenizer
from expediter.worker.generation import Choice
from expediter.worker.output import OutputDelta, chat_logprobs, completion_logprobs
from expediter.worker.protocol import ChatRequest, CompletionRequest
from expediter.worker.replies import encode

DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """How one API shapes what the choices say."""

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The body of an answer that is complete."""
        ...

    def events(self, choice: Choice) -> bytes:
        """Server-sent events for what is new with one choice."""
        ...

    def end(self, choices: Sequence[Choice]) -> bytes:
        """The events that close a stream."""
        ...


class Envelope:
    """`id`, `created` and `model`, the same on every chunk."""

    def __init__(self, answer_id: str, *, model: str, created: int) -> None:
        self.fields = {"id": answer_id, "created": created, "model": model}
        self._heads: dict[str, bytes] = {}

    def event(self, kind: str, choices: Sequence[dict[str, Any]], **more: object) -> bytes:
        """A chunk of object type `kind`; `more` are further fields."""
        head = self._heads.get(kind)
        if head is None:
            head = self._heads[kind] = encode({**self.fields, "object": kind})[:-1]
        tail = b"".join(b',"%b":%b' % (name.encode(), encode(more[name])) for name in more)
        return b'data: %b,"choices":%b%b}\n\n' % (head, encode(choices), tail)

    def whole(self, kind: str, choices: Sequence[dict[str, Any]], **more: object) -> bytes:
        """A complete answer of object type `kind`."""
        return encode({**self.fields, "object": kind, "choices": choices, **more})


class CompletionAnswer:
    """/v1/completions."""

    KIND = "text_completion"

    def __init__(
        self, request: CompletionRequest, *, envelope: Envelope, tokenizer: Tokenizer
    ) -> None:
        self._request = request
        self._envelope = envelope
        self._tokenizer = tokenizer

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """See `Answer`."""
        shaped = [self._choice(choice) for choice in choices]
        more = handover_fields(choices)
        return self._envelope.whole(self.KIND, shaped, usage=usage(choices), **more)

    def events(self, choice: Choice) -> bytes:
        """See `Answer`."""
        return self._envelope.event(
            self.KIND, [self._choice(choice)], **usage_so_far(self._request, choice)
        )

    def end(self, choices: Sequence[Choice]) -> bytes:
        """See `Answer`."""
        return closing_events(self._request, self._envelope, kind=self.KIND, choices=choices)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        is_first = not choice.was_taken
        delta = choice.take()
        wants_logprobs = self._request.num_logprobs is not None
        shaped: dict[str, Any] = {
            "index": choice.index,
            "text": self._echo(choice) + delta.text if is_first else delta.text,
            "logprobs": completion_logprobs(delta.logprobs) if wants_logprobs else None,
            **ending(delta),
        }
        if self._request.return_token_ids:
            shaped["token_ids"] = delta.token_ids
            if is_first:
                shaped["prompt_token_ids"] = choice.prompt.token_ids
        return shaped

    def _echo(self, choice: Choice) -> str:
        if not self._request.echo:
            return ""
        prompt = choice.prompt
        return self._tokenizer.decode(prompt.token_ids) if prompt.text is None else prompt.text


class ChatAnswer:
    """/v1/chat/completions."""

    WHOLE, CHUNK = "chat.completion", "chat.completion.chunk"

    def __init__(self, request: ChatRequest, *, envelope: Envelope) -> None:
        self._request = request
        self._envelope = envelope

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """See `Answer`."""
        more = handover_fields(choices)
        if self._request.return_token_ids:
            more["prompt_token_ids"] = choices[0].prompt.token_ids
        shaped = [self._choice(choice) for choice in choices]
        return self._envelope.whole(self.WHOLE, shaped, usage=usage(choices), **more)

    def events(self, choice: Choice) -> bytes:
        """See `Answer`."""
        so_far = usage_so_far(self._request, choice)
        opening = b"" if choice.was_taken else self._opening(choice, so_far)
        delta = choice.take()
        shaped = {
            "index": choice.index,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs(delta),
            **ending(delta),
            **self._token_ids(delta),
        }
        return opening + self._envelope.event(self.CHUNK, [shaped], **so_far)

    def end(self, choices: Sequence[Choice]) -> bytes:
        """See `Answer`."""
        return closing_events(self._request, self._envelope, kind=self.CHUNK, choices=choices)

    def _opening(self, choice: Choice, more: dict[str, Any]) -> bytes:
        """The chunk that says who speaks."""
        role = {"role": "assistant", "content": ""}
        shaped = {"index": choice.index, "delta": role, "logprobs": None, "finish_reason": None}
        if self._request.return_token_ids:
            more = {**more, "prompt_token_ids": choice.prompt.token_ids}
        return self._envelope.event(self.CHUNK, [shaped], **more)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        delta = choice.take()
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta),
            **ending(delta),
            **self._token_ids(delta),
        }

    def _logprobs(self, delta: OutputDelta) -> dict[str, Any] | None:
        wants_logprobs = self._request.num_logprobs is not None
        return chat_logprobs(delta.logprobs) if wants_logprobs else None

    def _token_ids(self, delta: OutputDelta) -> dict[str, Any]:
        return {"token_ids": delta.token_ids} if self._request.return_token_ids else {}


def ending(delta: OutputDelta) -> dict[str, Any]:
    """Why the answer ends here; null where it goes on."""
    return {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}


def usage(choices: Iterable[Choice]) -> dict[str, Any]:
    """The tokens of an answer. A prompt counts once, and as cached as its first choice found it."""
    prompts: dict[int, Choice] = {}
    num_completion_tokens = 0
    for choice in choices:
        prompts.setdefault(id(choice.prompt), choice)
        num_completion_tokens += choice.num_tokens
    num_prompt_tokens = sum(len(choice.prompt.token_ids) for choice in prompts.values())
    num_cached_tokens = sum(choice.num_cached_tokens for choice in prompts.values())
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    }


def usage_so_far(request: CompletionRequest | ChatRequest, choice: Choice) -> dict[str, Any]:
    """`usage` for a chunk, if the client wants it on every one."""
    options = request.stream_options
    wants_usage = options is not None and options.include_usage and options.continuous_usage_stats
    return {"usage": usage([choice])} if wants_usage else {}


def closing_events(
    request: CompletionRequest | ChatRequest,
    envelope: Envelope,
    *,
    kind: str,
    choices: Sequence[Choice],
) -> bytes:
    """The usage, if the client wants it, and the end mark."""
    options = request.stream_options
    if options is None or not options.include_usage:
        return DONE
    more = handover_fields(choices)
    return envelope.event(kind, [], usage=usage(choices), **more) + DONE


def handover_fields(choices: Sequence[Choice]) -> dict[str, Any]:
    """What an answer says about KV that moved for it; nothing if none was to."""
    leg = choices[0].leg
    return {} if leg is None else leg.answer_fields
