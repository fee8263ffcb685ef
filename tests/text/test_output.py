"""Streamed answers against the whole text cut by hand."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.request import (
    FinishReason,
    RequestId,
    RequestOutput,
    SampledToken,
    SamplingParams,
    TokenLogprob,
)
from expediter.tokenizer import IncrementalDetokenizer, Tokenizer
from expediter.worker.output import (
    OutputDelta,
    OutputProcessor,
    StopStrings,
    chat_logprobs,
    completion_logprobs,
)


def step(
    token_ids: Sequence[int],
    finish_reason: FinishReason | None = None,
    *,
    stop_token_id: int | None = None,
) -> RequestOutput:
    return RequestOutput(
        request_id=RequestId("r"),
        tokens=[SampledToken(token_id=token_id) for token_id in token_ids],
        num_cached_tokens=0,
        finish_reason=finish_reason,
        stop_token_id=stop_token_id,
    )


def run(processor: OutputProcessor, steps: Sequence[Sequence[int]]) -> list[OutputDelta]:
    """Feed all steps, the last one ending for length, as an engine does that is not told."""
    last = len(steps) - 1
    return [
        processor.process(step(ids, FinishReason.LENGTH if i == last else None))
        for i, ids in enumerate(steps)
    ]


def first_stop(
    tokenizer: Tokenizer, token_ids: Sequence[int], params: SamplingParams
) -> tuple[str, str | None]:
    """The answer, character by character: cut where a stop string first becomes complete."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    text = ""
    for num_tokens, token_id in enumerate(token_ids, 1):
        for character in detokenizer.add(token_id):
            text += character
            ended = [stop for stop in params.stop if text.endswith(stop)]
            if ended and num_tokens > params.min_tokens:
                stop = max(ended, key=len)
                return (text if params.include_stop_str_in_output else text[: -len(stop)]), stop
    return text + detokenizer.flush(), None


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet="abé ", max_size=30),
    tail=st.lists(st.integers(0, 263), max_size=6),
    stop=st.lists(st.text(alphabet="abé ", min_size=1, max_size=4), max_size=3),
    min_tokens=st.integers(0, 8),
    include=st.booleans(),
    cuts=st.sets(st.integers(1, 40)),
)
def test_streamed_text_is_the_whole_text_cut_at_the_first_stop(
    byte_level: Tokenizer,
    text: str,
    tail: list[int],
    stop: list[str],
    min_tokens: int,
    include: bool,
    cuts: set[int],
) -> None:
    params = SamplingParams(
        stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=include
    )
    token_ids = byte_level.encode(text) + tail
    places = sorted({0, len(token_ids), *(cut for cut in cuts if cut < len(token_ids))})
    steps = [token_ids[a:b] for a, b in pairwise(places)] or [[]]
    streamed = run(OutputProcessor(byte_level, params), steps)
    at_once = run(OutputProcessor(byte_level, params), [token_ids])
    expected, matched = first_stop(byte_level, token_ids, params)
    assert "".join(delta.text for delta in streamed) == expected
    assert "".join(delta.text for delta in at_once) == expected
    assert [delta.stop_reason for delta in streamed if delta.finish_reason] == [matched]
    # Never more tokens than it took, whatever came in the same step.
    assert sum((d.token_ids for d in streamed), ()) == at_once[0].token_ids


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="ab", max_size=25),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3),
)
def test_exactly_the_longest_possible_beginning_of_a_stop_is_held_back(
    text: str, stops: list[str]
) -> None:
    found = StopStrings(stops)
    found.feed(text, heeded=False)
    beginnings = {stop[:n] for stop in stops for n in range(len(stop))}
    assert found.num_held == max((len(b) for b in beginnings if text.endswith(b)), default=0)


def test_text_that_may_begin_a_stop_string_waits(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level, SamplingParams(stop=("</end>",)))
    shown = [processor.process(step([token])).text for token in byte_level.encode("x <a </e")]
    assert shown == ["x", " ", "", "<a", " ", "", "", ""]
    assert processor.process(step([], FinishReason.ABORT)).text == "</e"


def test_a_stop_string_ends_the_answer_and_asks_for_an_abort(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level, SamplingParams(stop=("b", "zz")))
    delta = processor.process(step(byte_level.encode("abaz")))
    assert (delta.text, delta.finish_reason) == ("a", FinishReason.STOP)
    assert (delta.stop_reason, delta.must_abort) == ("b", True)
    assert delta.token_ids == tuple(byte_level.encode("ab"))
    assert processor.process(step(byte_level.encode("aaa"))) == OutputDelta()


def test_a_stop_string_in_the_engines_last_step_needs_no_abort(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level, SamplingParams(stop=("b",)))
    delta = processor.process(step(byte_level.encode("ab"), FinishReason.LENGTH))
    assert (delta.finish_reason, delta.must_abort) == (FinishReason.STOP, False)


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "az")])
def test_a_stop_token_is_named_and_shown_only_when_asked(
    byte_level: Tokenizer, include: bool, text: str
) -> None:
    a, z = byte_level.encode("az")
    params = SamplingParams(stop_token_ids=frozenset({z}), include_stop_str_in_output=include)
    delta = OutputProcessor(byte_level, params).process(
        step([a, z], FinishReason.STOP, stop_token_id=z)
    )
    assert (delta.text, delta.stop_reason, delta.must_abort) == (text, z, False)
    assert delta.token_ids == (a, z)


def test_end_of_sequence_has_no_stop_reason_and_no_text(byte_level: Tokenizer) -> None:
    [eos] = byte_level.eos_token_ids
    for stop_token_id in (None, eos):
        processor = OutputProcessor(byte_level, SamplingParams(), skip_special_tokens=False)
        delta = processor.process(step([eos], FinishReason.STOP, stop_token_id=stop_token_id))
        assert (delta.text, delta.stop_reason) == ("", None)


def logprob_step(tokenizer: Tokenizer, text: str) -> RequestOutput:
    tokens = []
    for token_id in tokenizer.encode(text):
        chosen = TokenLogprob(token_id=token_id, logprob=-1.5, rank=2)
        best = TokenLogprob(token_id=tokenizer.encode("z")[0], logprob=float("-inf"), rank=1)
        tokens.append(SampledToken(token_id=token_id, logprobs=(chosen, best, chosen)))
    return RequestOutput(request_id=RequestId("r"), tokens=tokens, num_cached_tokens=0)


def test_logprobs_take_the_shapes_of_both_apis(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level, SamplingParams(num_logprobs=2))
    delta = processor.process(logprob_step(byte_level, "athe"))
    assert completion_logprobs(delta.logprobs, offset=10) == {
        "tokens": ["a", "the"],
        "token_logprobs": [-1.5, -1.5],
        "top_logprobs": [{"a": -1.5, "z": -9999.0}, {"the": -1.5, "z": -9999.0}],
        "text_offset": [10, 11],
    }
    assert chat_logprobs(delta.logprobs)["content"][0] == {
        "token": "a",
        "logprob": -1.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "z", "logprob": -9999.0, "bytes": [122]},
            {"token": "a", "logprob": -1.5, "bytes": [97]},
        ],
    }


def test_logprobs_of_a_characters_parts_carry_its_bytes(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level, SamplingParams(num_logprobs=0))
    delta = processor.process(logprob_step(byte_level, "x€y"))
    assert b"".join(token.sampled.utf8 for token in delta.logprobs) == "x€y".encode()
    assert [token.text_offset for token in delta.logprobs] == [0, 1, 1, 2]
    assert delta.text == "x€y"
