"""The default model's own tokenizer, from its GGUF file."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.tokenizer import IncrementalDetokenizer, Tokenizer, load_tokenizer, save_tokenizer


@pytest.mark.parametrize(
    ("text", "token_ids"),
    [  # as public examples of this tokenizer give them
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
        ("\n", [198]),
    ],
)
def test_known_texts_have_their_known_tokens(
    smollm: Tokenizer, text: str, token_ids: list[int]
) -> None:
    assert smollm.encode(text) == token_ids


@cache
def one_byte_tokens(tokenizer: Tokenizer) -> set[bytes]:
    pieces = {tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)}
    return {piece for piece in pieces if len(piece) == 1}


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_of_known_bytes_survives_the_round_trip(smollm: Tokenizer, text: str) -> None:
    # The vocabulary lacks a few control characters and the lead bytes of unassigned planes.
    known = one_byte_tokens(smollm)
    text = "".join(c for c in text if all(bytes([byte]) in known for byte in c.encode()))
    token_ids = smollm.encode(text)
    assert smollm.decode(token_ids, skip_special_tokens=False) == text
    detokenizer = IncrementalDetokenizer(smollm, skip_special_tokens=False)
    streamed = [detokenizer.add(token_id) for token_id in token_ids]
    assert "".join(streamed) + detokenizer.flush() == text


@settings(max_examples=200, deadline=None)
@given(token_ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_any_tokens_give_the_librarys_text(
    smollm: Tokenizer, token_ids: list[int], skip: bool
) -> None:
    expected = smollm.backend.decode(token_ids, skip_special_tokens=skip)
    assert smollm.decode(token_ids, skip_special_tokens=skip) == expected


def test_its_chat_prompt_is_what_its_template_says(smollm: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    turns = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
    system = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM,"
        " trained by Hugging Face<|im_end|>\n"
    )
    assert smollm.render_chat(messages, add_generation_prompt=False) == system + turns
    prompt = smollm.render_chat([{"role": "system", "content": "S"}, *messages])
    expected = f"<|im_start|>system\nS<|im_end|>\n{turns}<|im_start|>assistant\n"
    assert prompt == expected
    assert smollm.decode(
        smollm.encode_chat([{"role": "system", "content": "S"}, *messages]),
        skip_special_tokens=False,
    ) == (expected)


def test_its_answers_end_with_the_end_of_a_turn(smollm: Tokenizer) -> None:
    assert smollm.eos_token_ids == {smollm.encode("<|im_end|>")[0]}
    assert smollm.vocab_size == 49152


def test_its_export_is_a_folder_with_the_same_tokens(smollm: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(smollm, tmp_path)
    copy = load_tokenizer(tmp_path)
    text = "def f(x):\n\treturn x ** 2024  # é漢🙂<|im_end|>"
    assert copy.encode(text) == smollm.encode(text)
    assert (copy.fingerprint, copy.eos_token_ids) == (smollm.fingerprint, smollm.eos_token_ids)
