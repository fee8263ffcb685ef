"""Streams as servers send them, cut anywhere, and what is made of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.bench.reply import Reply
from expediter.bench.stream import EventStream, decode, error_kind

STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b': a comment\n\ndata: {"choices":[{"delta":{"content":"Hel"}}]}\r\n\r\n'
    b'data:{"choices":[{"delta":{"content":"lo"},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
)


def taken(*data: bytes) -> Reply:
    """A reply that got an event a second."""
    reply = Reply(sent_at=0.0, status=200)
    for second, event in enumerate(data, 1):
        reply.take(decode(event), now=float(second))
    return reply


@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = EventStream()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert [e for piece in pieces for e in stream.feed(piece)] == list(EventStream().feed(STREAM))


def test_a_reply_has_its_times_text_and_tokens() -> None:
    *events, done = EventStream().feed(STREAM)
    assert done == b"[DONE]"
    reply = taken(*events).end(now=9.0)
    assert reply.is_complete
    assert reply.text == "Hello"
    assert reply.ttft == 2.0  # the first event says nothing
    assert reply.tpot == 1.0
    assert reply.e2e == 3.0
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens) == (9, 4)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (b'{"choices":[{"text":"a"}]}', "a"),
        (b'{"choices":[{"delta":{"reasoning_content":"b"}}]}', "b"),
        (b'{"choices":[{"delta":{"reasoning":"c","content":null}}]}', "c"),
        (b'{"choices":[{"message":{"content":"d"}}]}', "d"),
        (b'{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}', ""),
    ],
)
def test_output_is_output_however_a_server_names_it(event: bytes, text: str) -> None:
    decoded = decode(event)
    assert decoded.has_output
    assert decoded.text == text


def test_a_stream_that_stops_in_the_middle_is_an_error() -> None:
    reply = taken(b'{"choices":[{"delta":{"content":"Hel"}}]}').end(now=2.0)
    assert not reply.is_complete
    assert reply.error == "truncated"
    assert (reply.ttft, reply.tpot, reply.e2e) == (None, None, None)


def test_an_error_within_a_stream_has_its_name() -> None:
    reply = taken(b'{"error":{"type":"worker_lost","message":"gone"}}').end(now=2.0)
    assert reply.error == "worker_lost"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        ({"type": "rate_limit_error"}, 429, "429 rate_limit_error"),
        ({"code": 400}, 400, "400 400"),
        ("no", 500, "500"),
        (None, 502, "502"),
        ("bad", 200, "error"),
    ],
)
def test_errors_are_named_by_kind(error: object, status: int, kind: str) -> None:
    assert error_kind(error, status) == kind
