"""The bytes each token stands for.

Both families of tokenizers that decoders use write text as a chain of bytes: byte-level BPE
spells each byte as a printable character (GPT-2's table), SentencePiece spells a space as
one and rare bytes as <0xNN>. So decoding is joining bytes and reading them as UTF-8.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import tokenizers

from expediter.errors import ModelLoadError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTE_LEVEL = {"ByteLevel", "Fuse"}
_SENTENCE_PIECE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class TokenBytes:
    """Bytes by token id, found on first use. `strips_space` says that a text's first space goes.

    Raises ModelLoadError for a decoder that does not write bytes one token after another.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        steps = _decoder_steps(backend)
        kinds = {step["type"] for step in steps}
        self._spell: Callable[[str], bytes]
        if "ByteLevel" in kinds and kinds <= _BYTE_LEVEL:
            self._spell = _ByteLevel().spell
            self.strips_space = False
        elif kinds and kinds <= _SENTENCE_PIECE:
            self._spell = _SentencePiece(steps).spell
            self.strips_space = any(_strips(step) for step in steps)
        else:
            raise ModelLoadError(
                f"the tokenizer's decoder is {sorted(kinds) or 'missing'}; allowed are byte-level"
                f" and SentencePiece decoders ({', '.join(sorted(_BYTE_LEVEL | _SENTENCE_PIECE))})"
            )
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """A token's bytes; none for an id that the vocabulary lacks."""
        found = self._known.get(token_id)
        if found is None:
            piece = self._backend.id_to_token(token_id)
            found = self._known[token_id] = b"" if piece is None else self._spell(piece)
        return found


class _ByteLevel:
    def __init__(self) -> None:
        self._bytes = {character: byte for byte, character in byte_characters().items()}

    def spell(self, piece: str) -> bytes:
        try:
            return bytes([self._bytes[character] for character in piece])
        except KeyError:  # an added token, written as it is
            return piece.encode()


class _SentencePiece:
    def __init__(self, steps: Iterable[dict[str, Any]]) -> None:
        steps = list(steps)
        self._has_byte_pieces = any(step["type"] == "ByteFallback" for step in steps)
        self._replacements = [found for step in steps if (found := _replacement(step))]

    def spell(self, piece: str) -> bytes:
        if self._has_byte_pieces and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for old, new in self._replacements:
            piece = piece.replace(old, new)
        return piece.encode()


def byte_characters() -> dict[int, str]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the rest from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = sorted(set(range(256)) - set(printable))
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(0x100 + place) for place, byte in enumerate(rest)}


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _replacement(step: dict[str, Any]) -> tuple[str, str] | None:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if step["type"] != "Replace":
        return None
    if "String" not in step["pattern"]:
        raise ModelLoadError("the tokenizer's decoder replaces by regular expression")
    return step["pattern"]["String"], step["content"]


def _strips(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"])
