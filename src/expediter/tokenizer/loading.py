"""Where tokenizers come from and go to: Hugging Face folders and GGUF files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from expediter.errors import ModelLoadError
from expediter.tokenizer.chat_template import ChatTemplate
from expediter.tokenizer.gguf_metadata import Value, read_gguf_metadata
from expediter.tokenizer.gguf_vocabulary import build_backend, end_token_ids, named_tokens
from expediter.tokenizer.tokenizer import Tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder or GGUF file; ModelLoadError says what is missing."""
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(path)
    raise ModelLoadError(f"{path} is neither a model folder nor a .gguf file")


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the Hugging Face files into `folder`, with the chat template used without tools."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **tokenizer.special_tokens,
    }
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    _write_json(folder / "tokenizer_config.json", config)
    ends = {"eos_token_id": sorted(tokenizer.eos_token_ids)}
    _write_json(folder / "generation_config.json", ends)


def _from_gguf(path: Path) -> Tokenizer:
    metadata = read_gguf_metadata(path)
    try:
        backend = build_backend(metadata)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"{path} holds no usable vocabulary: {error}") from error
    return Tokenizer(
        backend,
        eos_token_ids=end_token_ids(metadata),
        special_tokens=named_tokens(metadata),
        chat_template=_gguf_template(metadata),
    )


def _gguf_template(metadata: Mapping[str, Value]) -> ChatTemplate | None:
    """`tokenizer.chat_template` and its named companions, such as `.tool_use`."""
    key = "tokenizer.chat_template"
    sources = {
        name.removeprefix(f"{key}.") if name != key else "default": source
        for name, source in metadata.items()
        if (name == key or name.startswith(f"{key}.")) and isinstance(source, str)
    }
    return ChatTemplate(sources) if sources else None


def _from_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelLoadError(f"{folder} has no tokenizer.json (the fast tokenizer's file)")
    try:
        backend = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"{file} is not a usable tokenizer: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
    return Tokenizer(
        backend,
        eos_token_ids=_eos_token_ids(folder, backend, special_tokens),
        special_tokens=special_tokens,
        chat_template=_chat_template(folder, config),
    )


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Entries such as `bos_token`, written as text or as an object with its content."""
    found = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _eos_token_ids(
    folder: Path, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]
) -> frozenset[int]:
    """The tokenizer's end token and those of generation_config.json, else config.json's."""
    ends = _ids(_read_json(folder / "generation_config.json").get("eos_token_id"))
    named = backend.token_to_id(special_tokens.get("eos_token", ""))
    ends |= _ids(named)
    return ends or _ids(_read_json(folder / "config.json").get("eos_token_id"))


def _ids(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(entry for entry in values if isinstance(entry, int))


def _chat_template(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """chat_template.jinja comes first, then the config's text or list of named texts."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate(file.read_text(encoding="utf-8"))
    found = config.get("chat_template")
    if isinstance(found, str):
        return ChatTemplate(found)
    if isinstance(found, list) and found:
        return ChatTemplate({entry["name"]: entry["template"] for entry in found})
    return None


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a file; a missing file is an empty object."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} must hold a JSON object")
    return content


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
