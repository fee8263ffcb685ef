"""Turns of a workload as requests with real words."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Literal

import msgspec

from expediter.bench.endpoint import Client, Model, refusal
from expediter.bench.reply import Ask
from expediter.bench.settings import BenchConfig
from expediter.errors import EndpointError
from expediter.workload.prose import Prose
from expediter.workload.transcript import Segment, TranscriptTree
from expediter.workload.turn import Turn

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROBES = (100, 400)
"""Words of the two prompts from which words a token are found."""

Api = Literal["chat", "completions"]

_BETWEEN = "\n\n"
_SAMPLE = "the old house by the river was quiet in the morning and people walked slowly home "


class Writer:
    """Writes requests. It remembers answers, which the next prompts of their sessions hold."""

    def __init__(self, config: BenchConfig, *, model: str, words_per_token: float) -> None:
        self._config = config
        self._model = model
        self._prose = Prose(
            lambda text: max(1, round(len(text.split()) / words_per_token)),
            seed=config.seed,
            max_remembered=1 << 20,
        )
        self._answers: dict[str, str] = {}

    def prepare(self, turns: Iterable[Turn]) -> None:
        """Think up all words now, not when they are due."""
        for segment in {s for turn in turns for s in turn.prompt.segments}:
            self._prose.words(segment)

    def remember(self, turn: Turn, answer: str) -> None:
        """An endpoint's answer takes the place of the one that the workload made up."""
        if self._config.answers == "own" and turn.session is not None and answer:
            self._answers[turn.transcript.segment.name] = answer

    def ask(self, turn: Turn) -> Ask:
        """The request for a turn."""
        config = self._config
        body: dict[str, Any] = {
            "model": self._model,
            **self._prompt(turn),
            "max_tokens": turn.num_output_tokens,
            "temperature": config.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if config.ignore_eos:
            body["ignore_eos"] = True
        if turn.priority:
            body["priority"] = turn.priority
        headers = {}
        if config.session_header and turn.session:
            headers[config.session_header] = turn.session
        path = CHAT if config.api == "chat" else COMPLETIONS
        return Ask(path=path, body=_encode(body | config.extra_body), headers=headers)

    def _prompt(self, turn: Turn) -> dict[str, Any]:
        segments = turn.prompt.segments
        if self._config.api == "completions":
            return {"prompt": _BETWEEN.join(map(self._words, segments))}
        return {
            "messages": [
                {"role": role, "content": _BETWEEN.join(map(self._words, each))}
                for role, each in groupby(segments, key=_chat_role)
            ]
        }

    def _words(self, segment: Segment) -> str:
        return self._answers.get(segment.name) or self._prose.words(segment)


def completion(model: str, prompt: str, max_tokens: int) -> Ask:
    """A plain request for so many tokens."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    return Ask(path=COMPLETIONS, body=_encode(body))


async def words_per_token(
    client: Client, model: Model, *, api: Literal["chat", "completions"]
) -> float:
    """How many words of ours make a token of the endpoint's, by what it says of two prompts."""
    counts = []
    for num_words in PROBES:
        words = (_SAMPLE * (num_words // 8)).split()[:num_words]
        reply = await client.send(_probe(model.id, " ".join(words), api))
        if not reply.is_complete:
            raise EndpointError(f"a first request failed: {refusal(reply)}")
        if reply.usage is None or not reply.usage.prompt_tokens:
            raise EndpointError(
                "the endpoint does not say how many tokens a prompt has: say --words-per-token"
            )
        counts.append(reply.usage.prompt_tokens)
    return (PROBES[1] - PROBES[0]) / max(1, counts[1] - counts[0])


def scaled(turns: Iterable[Turn], factor: float) -> Iterator[Turn]:
    """The same with every text `factor` times as long, at least a token."""
    tree = TranscriptTree()
    for turn in turns:
        segments = (
            Segment(s.name, max(1, round(s.num_tokens * factor)), s.role)
            for s in turn.transcript.segments
        )
        yield msgspec.structs.replace(turn, transcript=tree.grow(segments))


def _probe(model: str, words: str, api: Api) -> Ask:
    if api == "completions":
        return completion(model, words, 1)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Ask(path=CHAT, body=_encode(body))


def _chat_role(segment: Segment) -> str:
    """What a tool said goes in as the user's: a message of a tool needs the call it answers."""
    return "user" if segment.role == "tool" else segment.role


def _encode(body: dict[str, Any]) -> bytes:
    return msgspec.json.encode(body)
