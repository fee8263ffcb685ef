"""Beginnings of conversations that are remembered: found by their bytes, bounded in memory."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from expediter.gateway.stems import MAX_ENDS, Stems

Turns = list[list[bytes]]


def message(words: str) -> bytes:
    return json.dumps({"role": "user", "content": words}, separators=(",", ":")).encode()


def listed(messages: Sequence[bytes], comma: bytes = b",") -> memoryview:
    return memoryview(b"[" + comma.join(messages) + b"]")


def grow(stems: Stems, messages: Sequence[bytes], comma: bytes = b",") -> bytes | None:
    """Read a list as conversations are read; a message's tokens are its own bytes here."""
    raw = listed(messages, comma)
    known = stems.longest(raw)
    start = known.end if known is not None else 0
    rest = raw[start:-1].tobytes()
    new = [m for i, m in enumerate(messages) if len(comma.join(messages[: i + 1])) + 1 > start]
    assert comma.join(new) in rest
    if not new:
        assert known is not None
        return known.stem.whole
    stem = stems.grow(raw, known, [[m] for m in new], new)
    return None if stem is None else stem.whole


lists = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), max_size=9)


@given(
    asked=lists,
    max_bytes=st.sampled_from([0, 2000, 10**6]),
    comma=st.sampled_from([b",", b", "]),
    long=st.sampled_from([1, 2000]),
)
def test_a_stem_is_the_tokens_of_the_bytes_it_was_found_by(asked, max_bytes, comma, long) -> None:
    stems = Stems(max_bytes=max_bytes)
    for names in asked:
        messages = [message(name * long) for name in names]
        assert grow(stems, messages, comma) == b"".join(messages)
        assert stems.num_bytes <= max_bytes
        assert (len(stems) == 0) == (stems.num_bytes == 0)


def test_the_longest_known_beginning_is_found_from_the_end() -> None:
    stems, messages = Stems(max_bytes=10**6), [message(str(number)) for number in range(20)]
    grow(stems, messages[:10])
    for num_new in range(MAX_ENDS):
        known = stems.longest(listed(messages[: 10 + num_new]))
        assert known is not None
        assert known.stem.whole == b"".join(messages[:10])
    assert stems.longest(listed(messages[: 10 + MAX_ENDS])) is None


def test_a_long_new_message_does_not_hide_what_is_before_it() -> None:
    stems, first = Stems(max_bytes=10**6), message("first")
    grow(stems, [first])
    known = stems.longest(listed([first, message("long " * 50_000)]))
    assert known is not None
    assert known.stem.whole == first


def test_words_that_look_like_an_end_are_none() -> None:
    stems = Stems(max_bytes=10**6)
    tricky = [message('{"a":1},{"b":2}'), message("},{"), message('"},{"')]
    assert grow(stems, tricky[:2]) == b"".join(tricky[:2])
    assert grow(stems, tricky) == b"".join(tricky)


def test_a_list_written_with_other_spaces_is_not_remembered() -> None:
    stems = Stems(max_bytes=10**6)
    assert grow(stems, [message("a"), message("b")], b" , ") is None
    assert len(stems) == 0


def test_a_conversation_that_goes_on_outlives_those_that_do_not() -> None:
    stems = Stems(max_bytes=100_000)
    alive = [message(str(number)) for number in range(30)]
    for number in range(3, 30):
        known = stems.longest(listed(alive[:number]))
        assert number == 3 or known is not None
        grow(stems, alive[:number])
        grow(stems, [message(f"gone {number}")] * 5)


def test_what_is_no_list_has_no_known_beginning() -> None:
    stems = Stems(max_bytes=10**6)
    for raw in (b"", b"]", b"null", b"{}", b"[]"):
        assert stems.longest(memoryview(raw)) is None
