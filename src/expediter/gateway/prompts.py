"""From a request's body to the prompt that routing compares.

With a tokenizer these are the very tokens the worker will compute. Without one, or where tokens
cannot be known (images, templates that come with the request), it is text. Token-id prompts need
no tokenizer.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from expediter.errors import RequestError
from expediter.gateway.conversations import Conversations, Read
from expediter.gateway.openai import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    Fields,
    decode_messages,
    decode_tools,
    longest_prompt,
    prompt_text,
)
from expediter.gateway.tokenizer import PromptTokenizer
from expediter.routing.prompt import Prompt, packed_prompt, text_prompt, token_prompt

MAX_TEXT = 4 * 1024 * 1024
"""Bytes of a text that are compared: a million tokens or so, as many as a worker is assumed to
hold. Naming the blocks of more would keep the event loop from everybody else."""


class PromptReader:
    """Reads prompts; `tokenizer` is None where only text is to be compared."""

    def __init__(
        self, tokenizer: PromptTokenizer | None, *, name: Callable[[Prompt], object] | None = None
    ) -> None:
        """`name` gives a prompt's blocks their names; long new ones get them in a thread."""
        self._tokenizer = tokenizer
        self._name = name
        self._conversations = Conversations(tokenizer) if tokenizer is not None else None

    async def read(self, path: bytes, fields: Fields, *, lora_name: str | None) -> Prompt | None:
        """The prompt of a request to `path`, or None where there is none to compare."""
        tokenizer, name = self._tokenizer, self._name
        num_in_background = 0 if tokenizer is None else tokenizer.num_in_background
        prompt = await self._read(path, fields, lora_name=lora_name)
        if prompt is None or tokenizer is None or name is None:
            return prompt
        if tokenizer.num_in_background != num_in_background:  # maybe for it
            await tokenizer.in_background(lambda: name(prompt))
        return prompt

    async def _read(self, path: bytes, fields: Fields, *, lora_name: str | None) -> Prompt | None:
        if path == COMPLETIONS:
            return await self._completion(fields.prompt, fields, lora_name=lora_name)
        if path == GENERATE:
            raw = fields.input_ids or fields.text
            return await self._completion(raw, fields, lora_name=lora_name)
        if path == CHAT and self._tokenizer is not None and not fields.chat_template:
            found = await self._chat(self._tokenizer, fields)
            if found is not None:
                return packed_prompt(
                    found.data,
                    stem=found.stem,
                    more=found.more,
                    num_more=found.num_more,
                    lora_name=lora_name,
                    cache_salt=fields.cache_salt,
                )
        text = prompt_text(path, fields)
        return None if text is None else text_prompt(text[:MAX_TEXT], cache_salt=fields.cache_salt)

    async def _chat(self, tokenizer: PromptTokenizer, fields: Fields) -> Read | None:
        """A chat's tokens; None where they cannot be known here."""
        if self._conversations is not None and _is_plain(fields):
            opens = fields.add_generation_prompt is not False
            found = await self._conversations.read(fields.messages, opens=opens)
            if found is not None:
                return found
        rendered = _render(tokenizer, fields)
        if rendered is None:
            return None
        adds = bool(fields.add_special_tokens)
        data = await tokenizer.pack(rendered, add_special_tokens=adds)
        return Read(None, data)

    async def _completion(
        self, raw: msgspec.Raw, fields: Fields, *, lora_name: str | None
    ) -> Prompt | None:
        prompt = longest_prompt(raw)
        if prompt is None:
            return None
        if isinstance(prompt, list):
            try:
                return token_prompt(prompt, lora_name=lora_name, cache_salt=fields.cache_salt)
            except OverflowError:
                return None
        if self._tokenizer is None:
            return text_prompt(prompt[:MAX_TEXT], cache_salt=fields.cache_salt)
        add = fields.add_special_tokens is not False
        data = await self._tokenizer.pack(prompt, add_special_tokens=add)
        return packed_prompt(data, lora_name=lora_name, cache_salt=fields.cache_salt)


def _is_plain(fields: Fields) -> bool:
    """Whether the prompt is the messages and nothing else."""
    return not (
        fields.tools
        or fields.chat_template_kwargs
        or fields.documents is not None
        or fields.continue_final_message
        or fields.add_special_tokens
    )


def _render(tokenizer: PromptTokenizer, fields: Fields) -> str | None:
    """The chat template's text; None where it cannot be known here."""
    messages = decode_messages(fields.messages)
    if not messages:
        return None
    names: dict[str, Any] = dict(fields.chat_template_kwargs or {})
    if fields.documents is not None:
        names["documents"] = fields.documents
    continues = bool(fields.continue_final_message)
    generates = fields.add_generation_prompt
    try:
        text = tokenizer.tokenizer.render_chat(
            messages,
            tools=decode_tools(fields.tools),
            add_generation_prompt=not continues if generates is None else generates,
            **names,
        )
    except (RequestError, TypeError, RecursionError):
        return None
    return _open_ended(text, messages[-1].get("content")) if continues else text


def _open_ended(text: str, final_message: object) -> str | None:
    """The prompt up to the final message's own end, which the model is to continue."""
    if isinstance(final_message, list) and final_message and isinstance(final_message[-1], dict):
        final_message = final_message[-1].get("text")
    words = final_message.strip() if isinstance(final_message, str) else ""
    start = text.rfind(words) if words else -1
    return None if start < 0 else text[: start + len(words)]
