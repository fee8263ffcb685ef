"""Hugging Face folders: which file says what, and which one wins."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from expediter.errors import ModelLoadError, RequestError
from expediter.tokenizer import Tokenizer, load_tokenizer, save_tokenizer


@pytest.fixture
def folder(byte_level: Tokenizer, tmp_path: Path) -> Path:
    """tokenizer.json alone, starting every text with <|bos|>."""
    backend = Backend.from_str(byte_level.backend.to_str())
    bos = backend.token_to_id("<|bos|>")
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", bos)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def render(folder: Path, **options: Any) -> str:
    return load_tokenizer(folder).render_chat([{"role": "user", "content": "hi"}], **options)


def test_the_post_processor_decides_about_the_first_token(
    folder: Path, byte_level: Tokenizer
) -> None:
    tokenizer = load_tokenizer(folder)
    bos = byte_level.encode("<|bos|>")
    assert tokenizer.encode("a") == bos + byte_level.encode("a")
    assert tokenizer.encode("a", add_special_tokens=False) == byte_level.encode("a")


def test_chat_prompts_carry_no_token_beyond_the_templates(
    folder: Path, byte_level: Tokenizer
) -> None:
    config = {"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": "<|bos|>"}
    write(folder, "tokenizer_config.json", config)
    chat = load_tokenizer(folder).encode_chat([{"role": "user", "content": "hi"}])
    assert chat == byte_level.encode("<|bos|>hi")


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, set()),
        ({"generation_config.json": {"eos_token_id": [7, 9]}}, {7, 9}),
        ({"generation_config.json": {"eos_token_id": 7}, "config.json": {"eos_token_id": 1}}, {7}),
        ({"config.json": {"eos_token_id": [5]}}, {5}),
        ({"tokenizer_config.json": {"eos_token": "<|end|>"}}, {263}),
        ({"tokenizer_config.json": {"eos_token": {"content": "<|end|>"}}}, {263}),
        (
            {
                "special_tokens_map.json": {"eos_token": "<|end|>"},
                "generation_config.json": {"eos_token_id": 7},
            },
            {7, 263},
        ),
    ],
)
def test_end_tokens_come_from_the_tokenizer_and_the_generation_config(
    folder: Path, files: dict[str, Any], ends: set[int]
) -> None:
    for name, content in files.items():
        write(folder, name, content)
    assert load_tokenizer(folder).eos_token_ids == ends


def test_the_template_file_wins_over_the_config(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": "config"})
    assert render(folder) == "config"
    (folder / "chat_template.jinja").write_text("file")
    assert render(folder) == "file"


def test_of_named_templates_tool_use_takes_conversations_with_tools(folder: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert render(folder) == "d"
    assert render(folder, tools=[]) == "d"
    assert render(folder, tools=[{"type": "function"}]) == "t"


def test_without_a_template_chat_points_to_completions(folder: Path) -> None:
    assert load_tokenizer(folder).chat_template is None
    with pytest.raises(RequestError, match="/v1/completions"):
        render(folder)


def test_padding_and_truncation_of_the_file_are_not_applied(folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=99)
    backend.save(str(folder / "tokenizer.json"))
    assert len(load_tokenizer(folder).encode("abcdefgh")) == 9


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelLoadError, match=r"neither a model folder nor a \.gguf file"):
        load_tokenizer(tmp_path / "absent.gguf")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="not a usable tokenizer"):
        load_tokenizer(tmp_path)


def test_a_broken_config_is_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(folder)


def test_decoders_that_do_not_write_bytes_are_refused(tmp_path: Path) -> None:
    backend = Backend(models.WordPiece({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelLoadError, match="allowed are byte-level and SentencePiece"):
        load_tokenizer(tmp_path)


def test_a_saved_tokenizer_is_the_same_when_loaded(folder: Path, tmp_path: Path) -> None:
    named = {"chat_template": "{{ messages[0].content }}{{ eos_token }}", "eos_token": "<|end|>"}
    write(folder, "tokenizer_config.json", named)
    original = load_tokenizer(folder)
    save_tokenizer(original, tmp_path / "copy")
    copy = load_tokenizer(tmp_path / "copy")
    assert copy.fingerprint == original.fingerprint
    assert copy.eos_token_ids == original.eos_token_ids
    assert copy.encode("thé <|end|>") == original.encode("thé <|end|>")
    assert render(tmp_path / "copy") == "hi<|end|>"


def test_fingerprints_tell_vocabularies_and_merges_apart(byte_level: Tokenizer) -> None:
    backend = Backend.from_str(byte_level.backend.to_str())
    same = Tokenizer(backend, eos_token_ids=frozenset())
    assert same.fingerprint == byte_level.fingerprint
    changed = json.loads(byte_level.backend.to_str())
    changed["model"]["merges"].reverse()
    other = Tokenizer(Backend.from_str(json.dumps(changed)), eos_token_ids=frozenset())
    assert other.fingerprint != byte_level.fingerprint


def test_lone_surrogates_count_as_replacement_characters(byte_level: Tokenizer) -> None:
    assert byte_level.encode("a\ud800b") == byte_level.encode("a\ufffdb")
    assert byte_level.encode("\ud83d\ude42") == byte_level.encode("🙂")


def test_other_threads_run_while_a_long_text_is_encoded(byte_level: Tokenizer) -> None:
    num_turns = 0
    is_done = threading.Event()

    def count() -> None:
        nonlocal num_turns
        while not is_done.wait(0.0005):
            num_turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = num_turns
    byte_level.encode("the quick brown fox " * 100_000)
    during = num_turns - before
    is_done.set()
    thread.join()
    assert during > 10  # with the interpreter lock held it would be 1 at most
