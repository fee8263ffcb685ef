"""The bodies of a pair: one request for the worker that computes the prompt, one for the other.

What the decode worker gets is the client's body, byte for byte, with a field more at its end. The
prefill worker is asked for one token in one piece; if nobody reads that token, for nothing besides.
"""

import random
from typing import Any

import msgspec
from msgspec.structs import replace

from expediter.cluster.client import ForwardedRequest, Usage
from expediter.cluster.handover import KVPeer, Merge
from expediter.gateway.openai import CHAT, COMPLETIONS, GENERATE
from expediter.gateway.prompt_logprobs import merged
from expediter.gateway.salting import with_field
from expediter.gateway.transfer import FIELD

SPLIT_PATHS = frozenset({COMPLETIONS, CHAT, GENERATE})
ROOM_BITS = 63

# What a prefill worker would do for an answer that nobody reads.
_FOR_NOBODY = (
    "min_tokens",
    "min_completion_tokens",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
)
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL, _ZERO, _ONE = msgspec.Raw(b"null"), msgspec.Raw(b"0"), msgspec.Raw(b"1")
_FALSE = msgspec.Raw(b"false")


class _Sampling(msgspec.Struct):
    n: int | None = None


class _Count(msgspec.Struct):
    """What says how many sequences a body asks for; SGLang's own API has other names for it."""

    prompt: str | list[Any] | None = None
    text: str | list[Any] | None = None
    input_ids: list[Any] | None = None
    n: int | None = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    stream: bool | None = None
    use_beam_search: bool | None = None
    return_logprob: bool | list[bool] | None = None

    @property
    def batch(self) -> list[Any] | None:
        """The prompts, if it is a list of prompts; a list of token ids is one."""
        prompt = self.prompt or self.input_ids or self.text
        is_batch = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return prompt if is_batch else None  # type: ignore[return-value]  # a list, as was seen

    @property
    def num_choices(self) -> int:
        """Answers to each prompt."""
        sampling = self.sampling_params
        if isinstance(sampling, list):
            sampling = sampling[0] if sampling else None
        return self.n or (sampling.n if sampling is not None else None) or 1


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Used(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Used | None = None


_answers = msgspec.json.Decoder(_Answer)
_counts = msgspec.json.Decoder(_Count)


class Legs:
    """See `LegBodies`; `rng` draws rooms, which nobody may guess or meet twice."""

    def __init__(self, *, rng: random.Random | None = None) -> None:
        self._rng = rng or random.SystemRandom()

    def may_split(self, request: ForwardedRequest) -> bool:
        """See LegBodies."""
        path = request.target.partition(b"?")[0]
        return request.method == b"POST" and path in SPLIT_PATHS and _count(request) is not None

    def has_one_prompt(self, request: ForwardedRequest) -> bool:
        """See LegBodies. Beams are no sequences that go on from one first token."""
        count = _count(request)
        return count is not None and count.batch is None and not count.use_beam_search

    def is_streamed(self, request: ForwardedRequest) -> bool:
        """See LegBodies."""
        count = _count(request)
        return count is not None and count.stream is True

    def prefill_leg(
        self, request: ForwardedRequest, params: bytes, *, is_first_token: bool
    ) -> ForwardedRequest:
        """See LegBodies."""
        fields = _objects.decode(request.body)
        for name in ("stream_options", "n", "best_of"):
            fields.pop(name, None)
        if not is_first_token:
            for name in _FOR_NOBODY:
                fields.pop(name, None)
        elif fields.get("min_tokens", _NULL) not in (_NULL, _ZERO):
            fields["min_tokens"] = _ONE
        fields["max_tokens"] = _ONE
        if "max_completion_tokens" in fields:
            fields["max_completion_tokens"] = _ONE
        fields["stream"] = _FALSE
        fields[FIELD] = msgspec.Raw(params)
        return replace(request, body=msgspec.json.encode(fields))

    def decode_leg(self, request: ForwardedRequest, params: bytes) -> ForwardedRequest:
        """See LegBodies."""
        return replace(request, body=with_field(request.body, FIELD, params))

    def params_of(self, answer: bytes) -> bytes | None:
        """See LegBodies; null, and an answer that is no JSON, are nothing to fetch."""
        try:
            params = _objects.decode(answer).get(FIELD)
        except (msgspec.DecodeError, RecursionError):
            return None
        return bytes(params) if params is not None and params != _NULL else None

    def usage_of(self, answer: bytes) -> Usage | None:
        """See LegBodies; of a stream, nothing."""
        try:
            usage = _answers.decode(answer).usage
        except (msgspec.DecodeError, RecursionError):
            return None
        if usage is None:
            return None
        details = usage.prompt_tokens_details
        return Usage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=details.cached_tokens if details is not None else None,
        )

    def bootstrap_leg(self, request: ForwardedRequest, peer: KVPeer) -> ForwardedRequest:
        """See LegBodies; a batch has an array of each, one entry a sequence."""
        count = _count(request)
        assert count is not None, "only what may be split"
        body, batch, num_choices = request.body, count.batch, count.num_choices
        host, port = msgspec.json.encode(peer.host), b"%d" % peer.port
        if batch is None and num_choices == 1:
            values = (host, port, self._room())
        else:
            number = (1 if batch is None else len(batch)) * num_choices
            rooms = [self._room() for _ in range(number)]
            values = (_array([host] * number), _array([port] * number), _array(rooms))
        for name, value in zip(("host", "port", "room"), values, strict=True):
            body = with_field(body, f"bootstrap_{name}", value)
        return replace(request, body=body)

    def merge_of(self, request: ForwardedRequest) -> Merge | None:
        """See LegBodies; SGLang's own API tells what the prompt's tokens were worth."""
        count = _count(request)
        has_path = request.target.partition(b"?")[0] == GENERATE
        if not has_path or count is None or not count.return_logprob:
            return None
        return merged

    def _room(self) -> bytes:
        return b"%d" % self._rng.getrandbits(ROOM_BITS)


def _array(values: list[bytes]) -> bytes:
    return b"[%b]" % b",".join(values)


def _count(request: ForwardedRequest) -> _Count | None:
    try:
        return _counts.decode(request.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
