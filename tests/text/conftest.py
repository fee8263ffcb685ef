"""Small tokenizers of both families, and the real one where its file is."""

import os
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from expediter.config import cache_dir
from expediter.engine.default_model import MEMBER
from expediter.tokenizer import Tokenizer as ModelTokenizer
from expediter.tokenizer import load_tokenizer
from expediter.tokenizer.token_bytes import byte_characters

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ã", "©"), ("â", "Ĥ"), ("l", "l")]


@pytest.fixture(scope="session")
def byte_level() -> ModelTokenizer:
    """256 bytes, six merges (one is half a character), two special tokens and an added one."""
    pieces = [*byte_characters().values(), *("".join(pair) for pair in MERGES)]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|bos|>", "<|end|>"])
    backend.add_tokens([AddedToken("two words", normalized=False)])
    return ModelTokenizer(backend, eos_token_ids=frozenset({len(pieces) + 1}))


@pytest.fixture(scope="session")
def sentence_piece() -> ModelTokenizer:
    """<unk>, <s>, 256 byte pieces and a few words."""
    words = ["▁", "a", "b", "é", "▁a", "ab", "▁ab", "漢"]
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    merges = [("a", "b"), ("▁", "ab"), ("▁", "a")]
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>"])
    return ModelTokenizer(backend, eos_token_ids=frozenset({1}))


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The default model's GGUF in the cache; tests that need it are skipped where it is not."""
    path = cache_dir(os.environ) / "models" / Path(MEMBER).name
    if not path.is_file():
        pytest.skip(f"the default model is not in the cache ({path})")
    return path


@pytest.fixture(scope="session")
def smollm(model_file: Path) -> ModelTokenizer:
    return load_tokenizer(model_file)
