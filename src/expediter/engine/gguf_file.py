"""Reads GGUF files: metadata, then tensors, each dequantised when asked for.

The container is parsed here because the gguf package's reader builds NumPy objects for every
vocabulary entry (2 s for 49,152 tokens; this takes a twentieth); the quantised formats are
the package's. Layout: ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from expediter.engine.int4 import Int4Matrix, read_int4
from expediter.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """Where a tensor lies. `shape` is row-major, outermost dimension first."""

    shape: tuple[int, ...]
    quantization: gguf.GGMLQuantizationType
    start: int
    num_bytes: int


class GGUFFile:
    """One mapped file. `metadata` maps keys to Python values; arrays of numbers are NumPy's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map(path)
        self._position = 0
        try:
            self.metadata, self.tensors = self._parse()
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise ModelLoadError(f"{path}: truncated or damaged GGUF header ({error})") from error

    def load(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's values, dequantised into a new array; `name` must be in `tensors`."""
        tensor = self.tensors[name]
        try:
            values = gguf.quants.dequantize(self._stored(name), tensor.quantization)
        except NotImplementedError:
            raise ModelLoadError(
                f"{self.path}: {name} is stored as {tensor.quantization.name}, which cannot be read"
            ) from None
        # Stored floats come back as a view of the file.
        return np.require(values, np.float32, "W").reshape(tensor.shape)

    def load_int4(self, name: str) -> Int4Matrix | None:
        """The matrix in its four-bit form; None if it is stored in another."""
        return read_int4(self._stored(name), self.tensors[name].quantization)

    def _stored(self, name: str) -> npt.NDArray[Any]:
        tensor = self.tensors[name]
        end = tensor.start + tensor.num_bytes
        if end > len(self._data):
            raise ModelLoadError(
                f"{self.path}: truncated: {name} ends at byte {end} of {len(self._data)}"
            )
        raw = np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.start)
        return _typed(raw, tensor)

    def _parse(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        if self._data[:4] != _MAGIC:
            raise ModelLoadError(f"{self.path} is not a GGUF file")
        self._position = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ModelLoadError(
                f"{self.path}: GGUF version {version}; supported, little-endian: 2, 3"
            )
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        metadata = {self._string(): self._value(self._scalar("I")) for _ in range(num_keys)}
        found = [self._tensor_info() for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", 32))
        base = -(-self._position // alignment) * alignment
        return metadata, {name: _at(info, base) for name, info in found}

    def _tensor_info(self) -> tuple[str, GGUFTensor]:
        name = self._string()
        shape = tuple(self._scalar("Q") for _ in range(self._scalar("I")))[::-1]
        kind = self._scalar("I")
        try:
            quantization = gguf.GGMLQuantizationType(kind)
        except ValueError:
            raise ModelLoadError(f"{self.path}: {name} has unknown type {kind}") from None
        block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
        num_bytes = int(np.prod(shape, dtype=np.int64)) // block * block_bytes
        start = self._scalar("Q")
        return name, GGUFTensor(
            shape=shape, quantization=quantization, start=start, num_bytes=num_bytes
        )

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._position)
        self._position += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        end = self._position + length
        if end > len(self._data):
            raise IndexError(f"a string of {length} bytes runs past the end")
        text = self._data[self._position : end].decode()
        self._position = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ModelLoadError(f"{self.path}: metadata of unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> Any:
        kind, length = self._scalar("I"), self._scalar("Q")
        if kind not in _SCALARS:
            read = self._string if kind == _STRING else self._array
            return [read() for _ in range(length)]
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        if self._position + length * dtype.itemsize > len(self._data):
            raise IndexError(f"an array of {length} runs past the end")
        values = np.frombuffer(self._data, dtype, length, self._position)
        self._position += values.nbytes
        return values


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _at(tensor: GGUFTensor, base: int) -> GGUFTensor:
    return GGUFTensor(
        shape=tensor.shape,
        quantization=tensor.quantization,
        start=base + tensor.start,
        num_bytes=tensor.num_bytes,
    )


def _typed(raw: npt.NDArray[np.uint8], tensor: GGUFTensor) -> npt.NDArray[Any]:
    """The bytes as gguf's dequantiser wants them: floats as such, blocks as rows of bytes."""
    match tensor.quantization:
        case gguf.GGMLQuantizationType.F32:
            return raw.view(np.float32)
        case gguf.GGMLQuantizationType.F16:
            return raw.view(np.float16)
    rows = max(1, int(np.prod(tensor.shape[:-1], dtype=np.int64)))
    return raw.reshape(rows, -1)
