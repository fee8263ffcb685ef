"""Tokenizers out of GGUF files, written here by the format's own library."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from expediter.errors import ModelLoadError
from expediter.tokenizer import Tokenizer, load_tokenizer
from expediter.tokenizer.gguf_metadata import read_gguf_metadata
from expediter.tokenizer.token_bytes import byte_characters

gguf = pytest.importorskip("gguf")

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
Write = Callable[[Mapping[str, Any]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(fields: Mapping[str, Any]) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for name, value in fields.items():
            key = f"tokenizer.{name}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write_file


def byte_level_fields(**changes: Any) -> dict[str, Any]:
    """Bytes, some merges, then three control tokens and a user-defined one."""
    merges = ["a b", "1 2", "Ġ ab", "12 3", "a a", "Ċ Ċ"]
    pieces = [*byte_characters().values(), *(merge.replace(" ", "") for merge in merges)]
    types = [NORMAL] * len(pieces) + [CONTROL] * 3 + [USER]
    pieces += ["<|bos|>", "<|eos|>", "<|eot_id|>", "[tool]"]
    bos = pieces.index("<|bos|>")
    fields = {
        "ggml.model": "gpt2",
        "ggml.pre": "gpt-2",
        "ggml.tokens": pieces,
        "ggml.token_type": types,
        "ggml.merges": merges,
        "ggml.bos_token_id": bos,
        "ggml.eos_token_id": bos + 1,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    return {**fields, **changes}


def sentence_piece_fields(**changes: Any) -> dict[str, Any]:
    """Pieces whose scores say that "ab" is made before "bc"."""
    words = {"▁": -5.0, "a": -6.0, "b": -7.0, "c": -8.0, "ab": -1.0, "bc": -2.0, "▁ab": -3.0}
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    fields = {
        "ggml.model": "llama",
        "ggml.tokens": pieces,
        "ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)],
        "ggml.scores": [0.0] * 259 + list(words.values()),
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
    }
    return {**fields, **changes}


def pieces_of(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[str]:
    token_ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return [tokenizer.token_text(token_id) for token_id in token_ids]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["123", " ab"]),
        ("smollm", ["1", "2", "3", " ab"]),
        ("qwen2", ["1", "2", "3", " ab"]),
        ("llama-bpe", ["123", " ab"]),
    ],
)
def test_each_pre_tokenizer_groups_digits_its_own_way(
    write: Write, pre: str, pieces: list[str]
) -> None:
    assert pieces_of(load_tokenizer(write(byte_level_fields(**{"ggml.pre": pre}))), "123 ab") == (
        pieces
    )


def test_byte_level_files_give_named_tokens_ends_and_a_template(write: Write) -> None:
    tokenizer = load_tokenizer(write(byte_level_fields()))
    bos = tokenizer.encode("<|bos|>")[0]
    assert tokenizer.eos_token_ids == {bos + 1, bos + 2}  # the named one and the turn's end
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<|bos|>hi"
    assert pieces_of(tokenizer, "a[tool]b") == ["a", "[tool]", "b"]
    assert tokenizer.decode(tokenizer.encode("a[tool]<|eos|>b")) == "a[tool]b"


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({}, False),
        ({"ggml.pre": "llama-bpe"}, True),
        ({"ggml.add_bos_token": True}, True),
        ({"ggml.pre": "llama-bpe", "ggml.add_bos_token": False}, False),
    ],
)
def test_the_first_token_is_added_where_the_file_or_its_kind_says(
    write: Write, changes: dict[str, Any], starts: bool
) -> None:
    tokenizer = load_tokenizer(write(byte_level_fields(**changes)))
    expected = ["<|bos|>", "ab"] if starts else ["ab"]
    assert pieces_of(tokenizer, "ab", add_special_tokens=True) == expected
    assert pieces_of(tokenizer, "ab") == ["ab"]


def test_sentence_piece_scores_decide_what_merges_first(write: Write) -> None:
    tokenizer = load_tokenizer(write(sentence_piece_fields()))
    assert pieces_of(tokenizer, "abc") == [" ab", "c"]
    assert pieces_of(tokenizer, "abc", add_special_tokens=True) == ["<s>", " ab", "c"]
    assert tokenizer.decode(tokenizer.encode("abc é")) == "abc é"
    unprefixed = load_tokenizer(write(sentence_piece_fields(**{"ggml.add_space_prefix": False})))
    assert pieces_of(unprefixed, "abc") == ["ab", "c"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (byte_level_fields(**{"ggml.model": "bert"}), "allowed are 'gpt2'"),
        (byte_level_fields(**{"ggml.pre": "tekken"}), "allowed are gpt-2"),
        (byte_level_fields(**{"ggml.token_type": [1, 2]}), "one type for each token"),
        (byte_level_fields(**{"ggml.merges": ["xx yy"]}), "no usable vocabulary"),
        (byte_level_fields(chat_template="{% if %}"), "chat template is not valid"),
        (sentence_piece_fields(**{"ggml.scores": [1.0]}), "one score for each token"),
        ({"ggml.model": "gpt2", "ggml.pre": "gpt-2"}, "no tokenizer.ggml"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_the_reason(
    write: Write, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load_tokenizer(write(fields))


def test_a_file_without_a_pre_tokenizer_is_read_as_gpt2(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    fields = byte_level_fields()
    del fields["ggml.pre"]
    assert pieces_of(load_tokenizer(write(fields)), "123") == ["123"]
    assert "no pre-tokenizer" in caplog.text


def test_named_templates_of_a_file_take_conversations_with_tools(write: Write) -> None:
    fields = byte_level_fields(**{"chat_template": "plain", "chat_template.tool_use": "tools"})
    tokenizer = load_tokenizer(write(fields))
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == "plain"
    assert tokenizer.render_chat(messages, tools=[{"type": "function"}]) == "tools"


def test_damaged_files_are_refused(write: Write, tmp_path: Path) -> None:
    whole = write(byte_level_fields()).read_bytes()
    path = tmp_path / "damaged.gguf"
    for content in (b"", b"GGUF", b"PK" + whole, whole[:200], whole[:-40], b"GGUF" + b"\xff" * 90):
        path.write_bytes(content)
        with pytest.raises(ModelLoadError):
            read_gguf_metadata(path)


def test_metadata_is_what_the_formats_library_reads(model_file: Path) -> None:
    fields = gguf.GGUFReader(model_file).fields
    ours = read_gguf_metadata(model_file)
    theirs = {name: field.contents() for name, field in fields.items() if name[:5] != "GGUF."}
    assert ours == theirs
