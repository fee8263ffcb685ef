"""A request's tokens as the text a client sees.

Text leaves as soon as it is certain: whole characters only, and nothing that may be the
beginning of a stop string. The answer ends at the stop string that is complete first,
reading character by character, so it does not depend on how steps cut the tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from expediter.request import FinishReason, RequestOutput, SampledToken, SamplingParams
from expediter.tokenizer import IncrementalDetokenizer, Tokenizer

_LEAST_LOGPROB = -9999.0  # JSON has no minus infinity; vLLM's value


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """A token and its log probability; `text` has U+FFFD where it is part of a character."""

    token_id: int
    text: str
    utf8: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """A sampled token, the likeliest ones in its place, and where its text begins.

    `text_offset` counts characters of the answer; text that a token completes begins where
    the token before it ended.
    """

    sampled: TokenChoice
    top: tuple[TokenChoice, ...]
    text_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelta:
    """What one step adds to an answer. The last one carries `finish_reason`.

    `stop_reason` is the stop string or stop token that ended it, None for end of sequence.
    `must_abort`: a stop string ended it while the engine goes on; it has to be told.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    must_abort: bool = False


class OutputProcessor:
    """One sequence's way from tokens to text. Feed it every RequestOutput in order."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, continues=True
        )
        self._stops = StopStrings(sampling.stop)
        self._held = ""  # text that may be the beginning of a stop string
        self._num_characters = 0  # of text so far, held or not
        self._num_tokens = 0
        self._is_finished = False

    def process(self, output: RequestOutput) -> OutputDelta:
        """The step's text, tokens and log probabilities; empty once the answer has ended."""
        if self._is_finished:
            return OutputDelta()
        hidden = self._hidden_tail(output)
        text, token_ids, logprobs = "", [], []
        for place, token in enumerate(output.tokens):
            token_ids.append(token.token_id)
            logprobs += self._logprobs(token)
            self._num_tokens += 1
            if place >= len(output.tokens) - hidden:
                continue
            shown, stop = self._add(self._detokenizer.add(token.token_id))
            text += shown
            if stop is not None:
                self._is_finished = True
                return OutputDelta(
                    text=text,
                    token_ids=tuple(token_ids),
                    logprobs=tuple(logprobs),
                    finish_reason=FinishReason.STOP,
                    stop_reason=stop,
                    must_abort=output.finish_reason is None,
                )
        if output.finish_reason is not None:
            self._is_finished = True
            text += self._held + self._detokenizer.flush()
        return OutputDelta(
            text=text,
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            finish_reason=output.finish_reason,
            stop_reason=self._stop_reason(output),
        )

    def _add(self, new: str) -> tuple[str, str | None]:
        """The text that may be shown after `new` came, and the stop string that it completed."""
        text = self._held + new
        end, stop = self._stops.feed(new, heeded=self._num_tokens > self._sampling.min_tokens)
        if stop is None:
            cut = len(text) - self._stops.num_held
        else:
            cut = len(self._held) + end
            if not self._sampling.include_stop_str_in_output:
                cut -= len(stop)
        self._held = text[cut:]
        self._num_characters += len(new)
        return text[:cut], stop

    def _hidden_tail(self, output: RequestOutput) -> int:
        """How many last tokens only end the answer: 1 if a stop or end token came, else 0."""
        is_stop = output.finish_reason is FinishReason.STOP and bool(output.tokens)
        return int(is_stop and not self._sampling.include_stop_str_in_output)

    def _stop_reason(self, output: RequestOutput) -> int | None:
        stop = output.stop_token_id
        is_end = stop in self._tokenizer.eos_token_ids and not self._sampling.ignore_eos
        return None if is_end else stop

    def _logprobs(self, token: SampledToken) -> list[TokenLogprobs]:
        if not token.logprobs:
            return []
        choices = [self._choice(entry.token_id, entry.logprob) for entry in token.logprobs]
        return [
            TokenLogprobs(
                sampled=choices[0], top=tuple(choices[1:]), text_offset=self._num_characters
            )
        ]

    def _choice(self, token_id: int, logprob: float) -> TokenChoice:
        return TokenChoice(
            token_id=token_id,
            text=self._tokenizer.token_text(token_id),
            utf8=self._tokenizer.token_bytes(token_id),
            logprob=max(_LEAST_LOGPROB, logprob),  # in this order NaN loses too
        )


class StopStrings:
    """Finds the stop string that is complete first in a text given piece by piece.

    Knuth, Morris and Pratt's automaton, one for each string: its state is how many of the
    string's characters the text ends with, which is also how much must be held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _failures(stop)) for stop in stops if stop]
        self._states = [0] * len(self._stops)

    @property
    def num_held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        return max(self._states, default=0)

    def feed(self, text: str, *, heeded: bool) -> tuple[int, str | None]:
        """Where in `text` a stop string ended, and which; of two that end together the longer.

        Without `heeded` complete strings are passed over.
        """
        if not self._stops:
            return len(text), None
        for end, character in enumerate(text, 1):
            found = self._step(character)
            if found is not None and heeded:
                return end, found
        return len(text), None

    def _step(self, character: str) -> str | None:
        found: str | None = None
        for place, (stop, failures) in enumerate(self._stops):
            state = self._states[place]
            while state and stop[state] != character:
                state = failures[state - 1]
            state += stop[state] == character
            if state == len(stop):
                found = stop if found is None or len(stop) > len(found) else found
                state = failures[state - 1]
            self._states[place] = state
        return found


def _failures(stop: str) -> list[int]:
    """For each beginning of `stop`, its longest proper beginning that is also its end."""
    failures = [0] * len(stop)
    state = 0
    for i in range(1, len(stop)):
        while state and stop[i] != stop[state]:
            state = failures[state - 1]
        state += stop[i] == stop[state]
        failures[i] = state
    return failures


def completion_logprobs(tokens: Sequence[TokenLogprobs], *, offset: int = 0) -> dict[str, Any]:
    """The `logprobs` object of /v1/completions; `offset` is the length of an echoed prompt."""
    return {
        "tokens": [token.sampled.text for token in tokens],
        "token_logprobs": [token.sampled.logprob for token in tokens],
        "top_logprobs": [_by_text((token.sampled, *token.top)) for token in tokens],
        "text_offset": [offset + token.text_offset for token in tokens],
    }


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The `logprobs` object of /v1/chat/completions."""
    return {
        "content": [
            {
                **_chat_choice(token.sampled),
                "top_logprobs": [_chat_choice(choice) for choice in token.top],
            }
            for token in tokens
        ]
    }


def _by_text(choices: Sequence[TokenChoice]) -> dict[str, float]:
    """Log probabilities by text; of tokens with the same text the first one's."""
    found: dict[str, float] = {}
    for choice in choices:
        found.setdefault(choice.text, choice.logprob)
    return found


def _chat_choice(choice: TokenChoice) -> dict[str, Any]:
    return {"token": choice.text, "logprob": choice.logprob, "bytes": list(choice.utf8)}
