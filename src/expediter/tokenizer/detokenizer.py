"""Text as tokens arrive, never half a character."""

import codecs

from expediter.tokenizer.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns one sequence of tokens into text, one token at a time.

    All `add` results and one `flush` joined are what `Tokenizer.decode` makes of all the
    tokens. `continues` says that text stands before them: then a leading space, which
    SentencePiece decoding drops at the start of a text, stays.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strips_space = tokenizer.strips_space and not continues

    def add(self, token_id: int) -> str:
        """The text that became complete with this token; empty inside a character."""
        if self._skip_special_tokens and token_id in self._tokenizer.special_token_ids:
            return ""
        return self._strip(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """What is left: a replacement character if the tokens end inside a character."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text
