"""Text token by token against the whole text at once."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.errors import RequestError
from expediter.tokenizer import IncrementalDetokenizer, Tokenizer

ids = st.lists(st.integers(0, 10**6), max_size=60)


def deltas(
    tokenizer: Tokenizer, token_ids: Sequence[int], *, skip: bool = True, continues: bool = False
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip, continues=continues)
    return [*(detokenizer.add(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("name", ["byte_level", "sentence_piece"])
@settings(max_examples=200, deadline=None)
@given(numbers=ids, skip=st.booleans())
def test_deltas_joined_are_the_whole_text(
    name: str, numbers: list[int], skip: bool, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    token_ids = [number % tokenizer.vocab_size for number in numbers]
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert "".join(deltas(tokenizer, token_ids, skip=skip)) == whole


@settings(max_examples=200, deadline=None)
@given(numbers=ids, skip=st.booleans())
def test_byte_level_text_is_the_tokenizers_librarys(
    byte_level: Tokenizer, numbers: list[int], skip: bool
) -> None:
    token_ids = [number % byte_level.vocab_size for number in numbers]
    expected = byte_level.backend.decode(token_ids, skip_special_tokens=skip)
    assert byte_level.decode(token_ids, skip_special_tokens=skip) == expected


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab é漢🙂\n", max_size=40))
def test_sentence_piece_text_is_the_tokenizers_librarys_where_utf8_is_whole(
    sentence_piece: Tokenizer, text: str
) -> None:
    token_ids = sentence_piece.encode(text)
    assert sentence_piece.decode(token_ids) == text
    assert sentence_piece.backend.decode(token_ids) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_no_half_character_is_ever_emitted(byte_level: Tokenizer, text: str) -> None:
    *streamed, rest = deltas(byte_level, byte_level.encode(text))
    assert rest == ""
    assert all("\ufffd" not in delta or "\ufffd" in text for delta in streamed)


def test_a_torn_character_becomes_a_replacement_character_only_at_the_end(
    byte_level: Tokenizer,
) -> None:
    token_ids = byte_level.encode("a€")[:-1]
    assert deltas(byte_level, token_ids) == ["a", "", "\ufffd"]


def test_special_tokens_show_only_when_asked(byte_level: Tokenizer) -> None:
    token_ids = byte_level.encode("a<|bos|>é<|end|>")
    assert "".join(deltas(byte_level, token_ids)) == "aé"
    assert "".join(deltas(byte_level, token_ids, skip=False)) == "a<|bos|>é<|end|>"


def test_a_continued_text_keeps_its_leading_space(sentence_piece: Tokenizer) -> None:
    token_ids = sentence_piece.encode("ab a")
    assert "".join(deltas(sentence_piece, token_ids)) == "ab a"
    assert "".join(deltas(sentence_piece, token_ids, continues=True)) == " ab a"


def test_ids_outside_the_vocabulary_decode_to_nothing_and_impossible_ones_are_refused(
    byte_level: Tokenizer,
) -> None:
    assert byte_level.decode([byte_level.vocab_size + 5]) == ""
    with pytest.raises(RequestError):
        byte_level.decode([-1])
