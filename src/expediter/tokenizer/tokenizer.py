"""One model's tokenizer: text to token ids, ids to text, conversations to prompts."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from expediter.errors import RequestError
from expediter.tokenizer.chat_template import ChatTemplate
from expediter.tokenizer.token_bytes import TokenBytes

_MAX_TOKEN_ID = 2**32 - 1


class Tokenizer:
    """Thread-safe; encoding long texts lets other threads run.

    `special_tokens` are the named ones a template may ask for (`bos_token` and so on).
    Special tokens written out in a text are taken as such, as in Hugging Face and vLLM.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: frozenset[int],
        special_tokens: Mapping[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self.backend = backend
        self.eos_token_ids = eos_token_ids
        self.special_tokens = dict(special_tokens or {})
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        )
        self._chat_template = chat_template
        self._token_bytes = TokenBytes(backend)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; a lone surrogate, which no UTF-8 text has, counts as U+FFFD."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        # Unlike `encode`, a batch of one releases the interpreter lock, and finds no offsets.
        [encoding] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text; broken UTF-8 becomes U+FFFD. Raises RequestError if an id cannot be one."""
        if ids and not 0 <= min(ids) <= max(ids) <= _MAX_TOKEN_ID:
            raise RequestError("token ids must be non-negative 32-bit integers", param="tokens")
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        table = self._token_bytes
        text = b"".join([table[i] for i in ids if i not in skipped]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_space else text

    def token_text(self, token_id: int) -> str:
        """One token alone, special ones written out; U+FFFD where it is part of a character."""
        return self._token_bytes[token_id].decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for."""
        return self._token_bytes[token_id]

    @property
    def strips_space(self) -> bool:
        """Whether decoding drops a space at the start of a text, as SentencePiece does."""
        return self._token_bytes.strips_space

    @property
    def chat_template(self) -> str | None:
        """The Jinja source used without tools, if the model has one."""
        return None if self._chat_template is None else self._chat_template.source

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """The prompt the model's template makes of a conversation in OpenAI's form."""
        if self._chat_template is None:
            raise RequestError(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        names: dict[str, Any] = {**self.special_tokens, **template_kwargs}
        names["add_generation_prompt"] = add_generation_prompt
        return self._chat_template.render(messages, tools=tools, names=names)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """The rendered prompt's tokens; the template writes its own special tokens."""
        text = self.render_chat(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **template_kwargs
        )
        return self.encode(text, add_special_tokens=False)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of vocabulary and merges: equal ones give ids the same meaning."""
        vocabulary = sorted((i, piece) for piece, i in self.backend.get_vocab().items())
        merges = json.loads(self.backend.to_str())["model"].get("merges")
        return hashlib.sha256(json.dumps([vocabulary, merges]).encode()).hexdigest()
