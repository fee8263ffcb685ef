"""Byte-level BPE by tiktoken: the ids of Hugging Face's tokenizer in a third of its time.

The two differ in what a merge is (a listed pair there, any two neighbours whose bytes are a
token here), in their regular expressions, and in what comes before and after. So a tokenizer
is taken over only if its parts are of known kinds, and if both give the same ids for a corpus of
probes when it is loaded: the words of its own vocabulary in several orders, and what is awkward.

A long text is encoded in pieces, each some tenths of a millisecond, and between two of them this
thread steps back. A kernel may let a thread run for milliseconds while others wait for its core,
whatever they asked for; a server's event loop that shares it would not come to speak meanwhile.
"""

import json
import os
import random
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers

from expediter.tokenizer.token_bytes import byte_characters

MAX_PROBED_PIECES = 8_000
PIECE_CHARS = 4_096
SHORT_CHARS = 1_000  # for which a list costs less than an array of numpy's
_BETWEEN_WORDS = re.compile("(?<=[A-Za-z])(?= [A-Za-z])")
"""Any expression for words takes the space to what follows it, or makes it one of its own."""
_step_back: Callable[[], None] = getattr(os, "sched_yield", lambda: None)  # not on every system
_FIRST_GAP = 2**32 - 257  # bytes without a token have names from here on
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same after a step that parts digits from all else: a digit ends a text like its end does.
_GPT2_BY_DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_AWKWARD = (
    "  1  a 12  \n\n 3 it's we'LL ''s \u00a0\u00a0x ½² ٣\n \t 1\t1 ",
    "naïve café 中文字符 \U0001f600\U0001f468\u200d\U0001f469 Ångström e\u0301 ﬁ İ \ufb01",
    "def f(x):\n\t return x**2  # don't\r\n\r\n   \r\n  end   ",
    "aaaaaaaaaaaaaaaaaaaaaaaa" + "\n" * 50 + " " * 50 + "=" * 50 + "x",
    'https://a.b/c?d=e&f=%20 {"key": [1, 2.5e-3, null]} $100,000.00 CamelCaseWord',
    "\x00\x01\x7f \u2028\u3000\ufeff\ufffd ب ב ไทย हिन्दी 한국어",
)


class BytePairs:
    """Encodes text without special tokens; made by `build_byte_pairs`."""

    def __init__(
        self, encoding: tiktoken.Encoding, ids: npt.NDArray[np.uint32] | None, *, normalizes: bool
    ) -> None:
        """`ids` has the token of each rank, or is None where they are the same."""
        self._encoding = encoding
        self._ids = ids
        self._normalizes = normalizes
        self.piece_chars = 0  # of long texts; 0 if they may not be cut

    def pack(self, text: str) -> bytes | None:
        """Four bytes a token; None for what only the other tokenizer can encode.

        Lets other threads run meanwhile.
        """
        if self._normalizes and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        if not 0 < 2 * self.piece_chars < len(text):
            return self._pack(text)  # short, and maybe for an event loop, which gives way to nobody
        found = []
        for piece in pieces(text, self.piece_chars):
            packed = self._pack(piece)
            if packed is None:
                return None
            found.append(packed)
            _step_back()
        return b"".join(found)

    def _pack(self, text: str) -> bytes | None:
        try:
            if self._ids is None and len(text) <= SHORT_CHARS:
                tokens = self._encoding.encode_ordinary(text)
                return array("I", tokens).tobytes() if max(tokens, default=0) < _FIRST_GAP else None
            ranks = self._encoding.encode_to_numpy(text, disallowed_special=())
        except (ValueError, UnicodeError):  # too much whitespace in a row for the expression
            return None
        ids = ranks if self._ids is None else self._ids[ranks]
        if ids.size and ids.max() >= _FIRST_GAP:
            return None
        return ids.tobytes()


def build_byte_pairs(backend: tokenizers.Tokenizer) -> BytePairs | None:
    """The same tokenizer, or None where it is of another kind or gives other ids."""
    parts = json.loads(backend.to_str())
    pattern = _pattern(parts["pre_tokenizer"])
    normalizer, model = parts["normalizer"], parts["model"]
    if pattern is None or (normalizer or {"type": "NFC"}) != {"type": "NFC"}:
        return None
    ranks = _ranks(model)
    if ranks is None:
        return None
    # A merge's rank says when it is made; a byte's says nothing.
    tokens = list(ranks.values())
    are_in_order = all(a < b for a, b in pairwise(tokens[256:]))
    encoding = tiktoken.Encoding(
        "byte-pairs",
        pat_str=pattern,
        mergeable_ranks=ranks if are_in_order else {p: rank for rank, p in enumerate(ranks)},
        special_tokens={},
    )
    ids = None if are_in_order else np.array(tokens, dtype=np.uint32)
    pairs = BytePairs(encoding, ids, normalizes=normalizer is not None)
    if not _agree(pairs, backend, ranks):
        return None
    pairs.piece_chars = 1
    pairs.piece_chars = PIECE_CHARS if _agree(pairs, backend, ranks) else 0
    return pairs


def pieces(text: str, num_chars: int) -> Iterator[str]:
    """Of so many characters and those up to the next space between two words of ASCII letters."""
    start, find = 0, _BETWEEN_WORDS.search
    while (cut := find(text, start + num_chars)) is not None:
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """One expression for what cuts a text into words."""
    steps = [] if pre_tokenizer is None else [pre_tokenizer]
    if steps and steps[0]["type"] == "Sequence":
        steps = steps[0]["pretokenizers"]
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    *before, byte_level = steps
    uses_regex = byte_level.get("use_regex", True)
    if not before:
        return _GPT2 if uses_regex else None
    if len(before) > 1:
        return None
    first = before[0]
    if first["type"] == "Digits" and first["individual_digits"] and uses_regex:
        return _GPT2_BY_DIGITS
    if first["type"] == "Split" and not uses_regex and _isolates(first):
        pattern: str | None = first["pattern"].get("Regex")
        return pattern
    return None


def _isolates(split: Mapping[str, Any]) -> bool:
    return bool(split["behavior"] == "Isolated" and not split["invert"])


def _ranks(model: Mapping[str, Any]) -> dict[bytes, int] | None:
    """Token ids by bytes, in the order in which they are merged; all 256 bytes come first."""
    plain = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    if model["type"] != "BPE" or any(model.get(name) for name in (*plain, "byte_fallback")):
        return None
    vocabulary: dict[str, int] = model["vocab"]
    bytes_of = {character: byte for byte, character in byte_characters().items()}
    ranks = {bytes([b]): vocabulary.get(c, _FIRST_GAP + b) for c, b in bytes_of.items()}
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        try:
            piece = bytes([bytes_of[character] for character in left + right])
            if piece in ranks:
                return None
            ranks[piece] = vocabulary[left + right]
        except KeyError:
            return None
    if model.get("ignore_merges"):  # then a word may be a token that no merge makes
        made = set(ranks.values())
        spelled = (i for piece, i in vocabulary.items() if bytes_of.keys() >= set(piece))
        if not made.issuperset(spelled):
            return None
    return ranks


def _agree(pairs: BytePairs, backend: tokenizers.Tokenizer, ranks: Iterable[bytes]) -> bool:
    """Whether both encode all probes alike."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    probes = [p for p in (*_AWKWARD, *_vocabulary_texts(list(ranks))) if not _has_any(p, added)]
    encodings = backend.encode_batch_fast(probes, add_special_tokens=False)
    for probe, encoding in zip(probes, encodings, strict=True):
        packed = pairs.pack(probe)
        expected = np.array(encoding.ids, dtype=np.uint32).tobytes()
        if packed is not None and packed != expected:  # what is None is encoded there
            return False
    return len(probes) > len(_AWKWARD)


def _vocabulary_texts(pieces: Sequence[bytes]) -> list[str]:
    """The vocabulary's words, as they are and with what may stand between."""
    rng = random.Random(0)
    words = [piece.decode("utf-8", "ignore") for piece in pieces]
    if len(words) > MAX_PROBED_PIECES:
        words = rng.sample(words, MAX_PROBED_PIECES)
    texts = []
    for between in ("", " ", "\n"):
        rng.shuffle(words)
        texts += [between.join(words[start : start + 100]) for start in range(0, len(words), 100)]
    return texts


def _has_any(text: str, contents: Iterable[str]) -> bool:
    return any(content in text for content in contents)
