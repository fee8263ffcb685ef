"""The two bodies of a pair, for any body: what is added, what is taken away, what stays."""

import json

from hypothesis import given
from hypothesis import strategies as st

from expediter.cluster.client import ForwardedRequest
from expediter.gateway.legs import Legs

PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_host": "a"}
RAW = json.dumps(PARAMS).encode()
TAKEN_AWAY = {"stream_options", "min_tokens", "n", "best_of", "logprobs", "echo"}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
bodies = st.fixed_dictionaries(
    {"prompt": st.text() | st.lists(st.integers(0, 2**31))},
    optional={
        "max_tokens": st.integers(1, 100),
        "max_completion_tokens": st.integers(1, 100),
        "stream": st.booleans(),
        "n": st.integers(1, 4),
        "logprobs": st.integers(0, 5),
        "min_tokens": st.integers(0, 5),
        "stream_options": st.just({"include_usage": True}),
        "metadata": values,
        'q"uote': values,
    },
)
spaces = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])


def request(body: bytes) -> ForwardedRequest:
    return ForwardedRequest(method=b"POST", target=b"/v1/completions", body=body)


@given(body=bodies, separators=spaces, end=st.sampled_from(["", "\n", "  \t"]))
def test_the_decode_leg_is_the_body_with_one_field_more(body, separators, end) -> None:
    raw = (json.dumps(body, separators=separators) + end).encode()
    leg = Legs().decode_leg(request(raw), RAW).body
    assert leg.startswith(raw.rstrip()[:-1])
    assert json.loads(leg) == {**body, "kv_transfer_params": PARAMS}


@given(body=bodies)
def test_the_prefill_leg_asks_for_one_token_in_one_piece(body) -> None:
    raw = json.dumps(body).encode()
    leg = json.loads(Legs().prefill_leg(request(raw), RAW, is_first_token=False).body)
    expected = {k: v for k, v in body.items() if k not in TAKEN_AWAY}
    expected |= {"max_tokens": 1, "stream": False, "kv_transfer_params": PARAMS}
    if "max_completion_tokens" in body:
        expected["max_completion_tokens"] = 1
    assert leg == expected


@given(body=bodies)
def test_a_first_token_is_sampled_as_the_client_asked(body) -> None:
    raw = json.dumps(body).encode()
    leg = json.loads(Legs().prefill_leg(request(raw), RAW, is_first_token=True).body)
    assert leg.get("logprobs") == body.get("logprobs")
    assert leg.get("min_tokens") == (min(1, body["min_tokens"]) if "min_tokens" in body else None)
    assert {"n", "stream_options"}.isdisjoint(leg)


@given(params=st.dictionaries(st.text(), values, min_size=1))
def test_what_a_prefill_worker_says_is_passed_on_as_it_is(params) -> None:
    legs, said = Legs(), json.dumps(params, indent=1).encode()
    answer = b'{"id": "x", "kv_transfer_params": ' + said + b', "usage": {}}'
    assert legs.params_of(answer) == said
    assert said in legs.decode_leg(request(b"{}"), said).body


def test_nothing_is_found_where_there_is_nothing() -> None:
    legs = Legs()
    for answer in (b"", b"[]", b"{}", b'{"kv_transfer_params": null}', b'{"kv_transfer_params"'):
        assert legs.params_of(answer) is None


def test_only_bodies_that_can_be_read_are_split() -> None:
    legs = Legs()
    for body in (b"", b"[]", b"{", b'{"prompt": 7}', b'{"prompt": "a", "n": "two"}', b"\xff{}"):
        assert not legs.may_split(request(body))
    assert legs.may_split(request(b'{"prompt": "a"}'))
    assert not legs.may_split(
        ForwardedRequest(method=b"POST", target=b"/v1/embeddings", body=b'{"input": "a"}')
    )
