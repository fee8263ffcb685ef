"""A tokenizer from a GGUF file's metadata.

GGUF names a pre-tokenizer instead of describing it (`tokenizer.ggml.pre`), so each name is
answered here with what the models' own tokenizer.json files hold. Names and defaults are
llama.cpp's (src/llama-vocab.cpp).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from expediter.errors import ModelLoadError
from expediter.tokenizer.gguf_metadata import Value

logger = logging.getLogger(__name__)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {  # how many digits go together is the only difference
    "llama3": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_LINES}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_LINES}",
}
_FAMILIES = {
    **dict.fromkeys(("gpt-2", "gpt2", "default"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), "llama3"),
    "qwen2": "qwen2",
}
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # of tokenizer.ggml.token_type
_END_OF_TURN = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>"}
_SPACE = "\u2581"


def build_backend(metadata: Mapping[str, Value]) -> Tokenizer:
    """The tokenizer; raises ModelLoadError naming what is allowed if we have no such kind."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _byte_level(metadata)
        adds_bos = _family(metadata) == "llama3"
    elif kind == "llama":
        backend = _sentence_piece(metadata)
        adds_bos = True
    else:
        raise ModelLoadError(
            f"tokenizer.ggml.model is {kind!r}; allowed are 'gpt2' (byte-level BPE) and 'llama'"
            " (SentencePiece BPE)"
        )
    _add_special_tokens(backend, metadata)
    if metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        _prepend(backend, named_tokens(metadata).get("bos_token"))
    return backend


def end_token_ids(metadata: Mapping[str, Value]) -> frozenset[int]:
    """Tokens that end an answer: those the file names, and well-known ends of a turn."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = {metadata.get(f"tokenizer.ggml.{key}") for key in keys}
    known = {
        token_id
        for token_id, (piece, kind) in enumerate(
            zip(_pieces(metadata), _token_types(metadata), strict=True)
        )
        if kind == _CONTROL and piece in _END_OF_TURN
    }
    return frozenset(token_id for token_id in named | known if isinstance(token_id, int))


def named_tokens(metadata: Mapping[str, Value]) -> dict[str, str]:
    """The pieces a chat template may ask for by name."""
    keys = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    pieces = _pieces(metadata)
    found = {}
    for key, name in keys.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(pieces):
            found[f"{name}_token"] = pieces[token_id]
    return found


def _byte_level(metadata: Mapping[str, Value]) -> Tokenizer:
    family = _family(metadata)
    pairs = [merge.partition(" ") for merge in _strings(metadata, "merges")]
    merges = [(left, right) for left, _, right in pairs]
    vocabulary = {piece: token_id for token_id, piece in enumerate(_pieces(metadata))}
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=family == "llama3")
    )
    backend.decoder = decoders.ByteLevel()
    steps: list[Any] = []
    if family == "digits":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if family in _SPLITS:
        steps.append(pre_tokenizers.Split(Regex(_SPLITS[family]), behavior="isolated"))
    bytes_only = family in _SPLITS
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not bytes_only))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if family == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _family(metadata: Mapping[str, Value]) -> str:
    name = metadata.get("tokenizer.ggml.pre")
    if name is None:
        logger.warning("the file names no pre-tokenizer; taking GPT-2's")
        name = "default"
    if not isinstance(name, str) or name not in _FAMILIES:
        allowed = ", ".join(_FAMILIES)
        raise ModelLoadError(f"tokenizer.ggml.pre is {name!r}; allowed are {allowed}")
    return _FAMILIES[name]


def _sentence_piece(metadata: Mapping[str, Value]) -> Tokenizer:
    """SentencePiece BPE as merges: the higher a piece's score, the earlier it is merged."""
    pieces = _pieces(metadata)
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(pieces):
        raise ModelLoadError("tokenizer.ggml.scores must have one score for each token")
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_by_score(metadata, vocabulary, scores),
            unk_token=pieces[unknown] if isinstance(unknown, int) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
    back: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(_SPACE))
        back.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(back)
    return backend


def _merges_by_score(
    metadata: Mapping[str, Value], vocabulary: Mapping[str, int], scores: Sequence[Any]
) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, likeliest piece first."""
    whole = {_UNKNOWN, _CONTROL, _USER_DEFINED}
    types = _token_types(metadata)
    usable = {piece: i for piece, i in vocabulary.items() if types[i] not in whole}
    ranked = []
    for piece, token_id in usable.items():
        for cut in range(1, len(piece)):
            left, right = usable.get(piece[:cut]), usable.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], token_id, left, piece[:cut], piece[cut:]))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_special_tokens(backend: Tokenizer, metadata: Mapping[str, Value]) -> None:
    tokens = [
        AddedToken(piece, special=kind != _USER_DEFINED, normalized=False)
        for piece, kind in zip(_pieces(metadata), _token_types(metadata), strict=True)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens(tokens)


def _prepend(backend: Tokenizer, piece: str | None) -> None:
    """Have every text start with this token when special tokens are asked for."""
    if piece is not None:
        token_id = backend.token_to_id(piece)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{piece} $A", special_tokens=[(piece, token_id)]
        )


def _pieces(metadata: Mapping[str, Value]) -> list[str]:
    return _strings(metadata, "tokens")


def _strings(metadata: Mapping[str, Value], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise ModelLoadError(f"the GGUF file has no tokenizer.ggml.{key}")
    return [str(value) for value in values]


def _token_types(metadata: Mapping[str, Value]) -> list[Value]:
    types = metadata.get("tokenizer.ggml.token_type")
    num_tokens = len(_pieces(metadata))
    if isinstance(types, list) and len(types) == num_tokens:
        return types
    raise ModelLoadError("tokenizer.ggml.token_type must have one type for each token")
