"""From a request's texts to the tokens that the model reads.

Tokenising a long text takes longer than a step of other requests may wait, so it runs in
another thread; short texts are not worth the way there.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from expediter.errors import PromptTooLong, RequestError, UnknownModel, UnsupportedParameter
from expediter.tokenizer import Tokenizer
from expediter.worker.protocol import (
    MAX_SEQUENCES,
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
)

LONG_BYTES = 8192
OWN_TEMPLATE_KEYS = frozenset({"messages", "tools", "add_generation_prompt", "self"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What the server has to know of the model; token ids are below `vocab_size`."""

    name: str
    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int

    def require(self, name: str | None) -> None:
        """Raise UnknownModel if a request names another model."""
        if name is not None and name != self.name:
            raise UnknownModel(
                f"the model {name!r} does not exist; this server has {self.name!r}", param="model"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt's tokens, and the text they were made of, if one was."""

    token_ids: list[int]
    text: str | None = None


class PromptReader:
    """Tokenises requests; RequestError says what is wrong with a prompt."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._tokenizer = model.tokenizer

    async def completion(self, request: CompletionRequest, *, num_bytes: int) -> list[Prompt]:
        """The prompts of a completion."""
        given = split_prompts(request.prompt)
        if len(given) * request.num_choices > MAX_SEQUENCES:
            raise RequestError(f"prompts times n may be at most {MAX_SEQUENCES}", param="prompt")

        def read() -> list[Prompt]:
            return [self._prompt(one, special=request.add_special_tokens) for one in given]

        return await off_loop(read, is_long=num_bytes > LONG_BYTES)

    async def chat(self, request: ChatRequest | TokenizeRequest, *, num_bytes: int) -> Prompt:
        """A conversation's prompt."""

        def read() -> Prompt:
            return self._conversation(request)

        return await off_loop(read, is_long=num_bytes > LONG_BYTES)

    async def text(self, text: str, *, special: bool) -> list[int]:
        """A text's tokens; it may be empty."""

        def read() -> list[int]:
            return self._tokenizer.encode(text, add_special_tokens=special)

        return await off_loop(read, is_long=len(text) > LONG_BYTES)

    def _prompt(self, given: str | list[int], *, special: bool) -> Prompt:
        if isinstance(given, str):
            ids = self._tokenizer.encode(given, add_special_tokens=special)
            return Prompt(token_ids=_not_empty(ids, "prompt"), text=given)
        too_large = max(_not_empty(given, "prompt"))
        if too_large >= self._model.vocab_size:
            raise RequestError(
                f"token id {too_large} is not in the vocabulary of {self._model.vocab_size} tokens",
                param="prompt",
            )
        return Prompt(token_ids=given)

    def _conversation(self, request: ChatRequest | TokenizeRequest) -> Prompt:
        messages = request.messages or []
        try:
            text = self._tokenizer.render_chat(
                messages,
                tools=request.tools,
                add_generation_prompt=_adds_generation_prompt(request),
                **_template_names(request),
            )
        except RecursionError as error:
            raise RequestError("messages are nested too deeply", param="messages") from error
        if request.continue_final_message:
            text = _open_end(text, messages[-1])
        ids = self._tokenizer.encode(text, add_special_tokens=bool(request.add_special_tokens))
        return Prompt(token_ids=_not_empty(ids, "messages"), text=text)


def split_prompts(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """One or several prompts, each a text or token ids; RequestError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt may not be empty", param="prompt")
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return [token_ids]
    several = [item for item in prompt if not isinstance(item, int)]
    if len({type(item) for item in prompt}) > 1:
        raise RequestError("prompt mixes texts, token ids and lists", param="prompt")
    return list(several)


def num_new_tokens(prompt: Prompt, *, wanted: int | None, default: int | None, limit: int) -> int:
    """How many tokens may be generated; a default, unlike a wish, shrinks to what fits."""
    if wanted is not None:
        return wanted  # the scheduler says whether it fits
    room = limit - len(prompt.token_ids)
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {len(prompt.token_ids)} tokens; prompt and answer together may have "
            f"at most {limit}"
        )
    return room if default is None else min(default, room)


async def off_loop(work: Callable[[], T], *, is_long: bool) -> T:
    """What `work` returns; done in another thread if it is long."""
    return await asyncio.to_thread(work) if is_long else work()


def _not_empty(token_ids: list[int], param: str) -> list[int]:
    if not token_ids:
        raise RequestError(f"{param} may not be empty", param=param)
    return token_ids


def _adds_generation_prompt(request: ChatRequest | TokenizeRequest) -> bool:
    if request.add_generation_prompt is None:
        return not request.continue_final_message
    return request.add_generation_prompt


def _template_names(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    names = dict(request.chat_template_kwargs or {})
    taken = OWN_TEMPLATE_KEYS & names.keys()
    if taken:
        raise UnsupportedParameter(
            f"chat_template_kwargs may not hold {', '.join(sorted(taken))}",
            param="chat_template_kwargs",
        )
    if isinstance(request, ChatRequest) and request.documents is not None:
        names["documents"] = request.documents
    return names


def _open_end(text: str, message: Mapping[str, Any]) -> str:
    """The rendered conversation without what the template puts after its last message."""
    content = message.get("content")
    if isinstance(content, list):
        last = content[-1] if content else None
        content = last.get("text") if isinstance(last, dict) else last
    words = content.strip() if isinstance(content, str) else ""
    place = text.rfind(words) if words else -1
    if place < 0:
        raise RequestError(
            "continue_final_message: the template does not show the last message as it is",
            param="messages",
        )
    return text[: place + len(words)]
