"""tiktoken in place of Hugging Face's encoder: the same ids, or none."""

from array import array
from collections.abc import Callable
from functools import cache

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from expediter.tokenizer.byte_pairs import PIECE_CHARS, BytePairs, build_byte_pairs, pieces

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog 0123456789",
    "def f(x):\n    return x + 1  # don't, it's naïve café \u4e2d\u6587",
] * 9
bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
with_regex = pre_tokenizers.ByteLevel(add_prefix_space=False)
PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt2": lambda: with_regex,
    "digits": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), with_regex]
    ),
    "llama3": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"), bytes_alone]
    ),
}


def trained(kind: str, *, normalizes: bool = False) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = PRE_TOKENIZERS[kind]()
    backend.decoder = decoders.ByteLevel()
    if normalizes:
        backend.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@cache
def both(kind: str, normalizes: bool) -> tuple[tokenizers.Tokenizer, BytePairs]:
    backend = trained(kind, normalizes=normalizes)
    pairs = build_byte_pairs(backend)
    assert pairs is not None
    return backend, pairs


texts = st.lists(
    st.one_of(
        st.sampled_from(["the", " quick", "  ", "\n", "\t", "12", "'s", "'LL", "e\u0301", "\r\n"]),
        st.text(max_size=8),
    ),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=300)
@given(text=texts, kind=st.sampled_from(sorted(PRE_TOKENIZERS)), normalizes=st.booleans())
def test_ids_are_hugging_faces(text: str, kind: str, normalizes: bool) -> None:
    backend, pairs = both(kind, normalizes)
    packed = pairs.pack(text)
    assert packed is not None
    assert list(array("I", packed)) == backend.encode(text, add_special_tokens=False).ids


@settings(deadline=None, max_examples=300)
@given(
    text=texts,
    kind=st.sampled_from(sorted(PRE_TOKENIZERS)),
    normalizes=st.booleans(),
    num_chars=st.integers(1, 9),
)
def test_ids_of_a_text_in_pieces_are_those_of_the_whole(
    text: str, kind: str, normalizes: bool, num_chars: int
) -> None:
    _, pairs = both(kind, normalizes)
    text = f"{text} the quick {text} brown {text}"
    found = list(pieces(text, num_chars))
    assert "".join(found) == text
    assert pairs.piece_chars == PIECE_CHARS
    whole = pairs.pack(text)
    try:
        pairs.piece_chars = num_chars
        assert pairs.pack(text) == whole
    finally:
        pairs.piece_chars = PIECE_CHARS


def test_a_tokenizer_whose_words_may_be_two_is_not_cut() -> None:
    """Its expression takes a space and the words on both of its sides."""
    backend = tokenizers.Tokenizer(models.BPE())
    pattern = r"\p{L}+ \p{L}+|[^\p{L}]|\p{L}+"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), bytes_alone]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    pairs = build_byte_pairs(backend)
    assert pairs is not None
    assert pairs.piece_chars == 0
    text = CORPUS[0] * 500
    packed = pairs.pack(text)
    assert packed is not None
    assert list(array("I", packed)) == backend.encode(text, add_special_tokens=False).ids


def test_too_much_whitespace_for_the_expression_is_left_to_the_other() -> None:
    _, pairs = both("gpt2", False)
    assert pairs.pack(" " * 1_200_000) is None


def test_a_byte_without_a_token_is_left_to_the_other() -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = with_regex
    trainer = trainers.BpeTrainer(vocab_size=120, show_progress=False)
    backend.train_from_iterator(["the lazy dog"] * 9, trainer)
    pairs = build_byte_pairs(backend)
    assert pairs is not None
    assert pairs.pack("the cat") is None  # no "c"
    assert pairs.pack("the dog") is not None


def metaspace(backend: tokenizers.Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Metaspace()


def prefix_space(backend: tokenizers.Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def lowercase(backend: tokenizers.Tokenizer) -> None:
    backend.normalizer = normalizers.Lowercase()


def dropout(backend: tokenizers.Tokenizer) -> None:
    backend.model.dropout = 0.5


def drops_spaces(backend: tokenizers.Tokenizer) -> None:
    split = pre_tokenizers.Split(" ", behavior="removed")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])


def words_are_looked_up(backend: tokenizers.Tokenizer) -> None:
    vocabulary = {**backend.get_vocab(), "Ġzzz": backend.get_vocab_size()}
    del vocabulary["<s>"]
    backend.model = models.BPE(vocab=vocabulary, merges=[], ignore_merges=True)


@pytest.mark.parametrize(
    "change", [metaspace, prefix_space, lowercase, dropout, drops_spaces, words_are_looked_up]
)
def test_another_kind_of_tokenizer_is_not_taken_over(
    change: Callable[[tokenizers.Tokenizer], None],
) -> None:
    backend = trained("gpt2")
    change(backend)
    assert build_byte_pairs(backend) is None


def test_merges_that_the_two_understand_differently_are_found_out() -> None:
    """'abc' is made of 'a' and 'bc' only; tiktoken would make it of 'ab' and 'c' too."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for piece in ("ab", "bc", "abc"):
        vocabulary[piece] = len(vocabulary)
    merges = [("a", "b"), ("b", "c"), ("a", "bc")]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = with_regex
    assert backend.encode("abc").tokens == ["ab", "c"]
    assert build_byte_pairs(backend) is None
