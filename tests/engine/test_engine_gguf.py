"""GGUF files: the container, every quantised format, and llama.cpp's conventions."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from driving import Driven, blocks_for, load, run
from gguf import GGMLQuantizationType as Kind
from tiny_models import Tiny, quantized, reference_logits, write_folder, write_gguf

from expediter.engine.architecture import RopeConfig
from expediter.engine.checkpoint import GGUFCheckpoint, SafetensorsCheckpoint
from expediter.engine.gguf_file import GGUFFile

WRITABLE = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q5_0, Kind.Q5_1, Kind.Q4_0, Kind.Q4_1]
PROMPT = [5, 17, 3, 88, 41, 7, 7, 60, 12, 1]


async def greedy(path: Path, num_tokens: int) -> list[int]:
    executor = load(path)
    sequence = Driven(
        name="a",
        token_ids=list(PROMPT),
        block_ids=blocks_for(len(PROMPT) + num_tokens),
        num_output_tokens=num_tokens,
    )
    await run(executor, [sequence])
    await executor.close()
    return sequence.output_ids


@pytest.mark.parametrize("kind", WRITABLE, ids=lambda kind: kind.name)
async def test_a_gguf_model_computes_what_its_quantised_weights_say(
    tmp_path: Path, kind: Kind
) -> None:
    tiny = Tiny(tied=False)
    tensors = tiny.tensors()
    path = write_gguf(tmp_path / "tiny.gguf", tiny, tensors, quantization=kind)
    logits = reference_logits(tiny, quantized(tensors, kind), PROMPT)[-1]
    assert await greedy(path, 1) == [int(logits.argmax())]


@pytest.mark.parametrize(
    "tiny", [Tiny(), Tiny(model_type="qwen2", qkv_bias=True)], ids=lambda tiny: tiny.model_type
)
async def test_gguf_and_safetensors_of_one_model_give_the_same_tokens(
    tmp_path: Path, tiny: Tiny
) -> None:
    """Only the architecture that llama.cpp calls llama has its Q and K rows reordered."""
    tensors = tiny.tensors()
    folder = write_folder(tmp_path / "folder", tiny, tensors)
    file = write_gguf(tmp_path / "tiny.gguf", tiny, tensors)
    assert await greedy(folder, 8) == await greedy(file, 8)


async def test_shards_give_the_same_tokens_as_one_file(tmp_path: Path) -> None:
    tiny = Tiny()
    tensors = tiny.tensors()
    whole = write_folder(tmp_path / "whole", tiny, tensors)
    shards = write_folder(tmp_path / "shards", tiny, tensors, num_shards=3)
    assert await greedy(whole, 8) == await greedy(shards, 8)


def q4_k_value(block: bytes, index: int) -> float:
    """ggml's block_q4_K by hand: d, dmin, 12 bytes of 6-bit scales and minimums, 128 of nibbles."""
    d, dmin = np.frombuffer(block[:4], np.float16).astype(float)
    packed, nibbles = block[4:16], block[16:]
    group, within = divmod(index, 32)
    if group < 4:
        scale, minimum = packed[group] & 63, packed[group + 4] & 63
    else:
        scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
        minimum = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
    byte = nibbles[group // 2 * 32 + within]
    return float(d * scale * (byte >> 4 if group % 2 else byte & 15) - dmin * minimum)


def q6_k_value(block: bytes, index: int) -> float:
    """ggml's block_q6_K by hand: 128 bytes of low nibbles, 64 of high bits, 16 scales, d."""
    half, within = divmod(index, 128)
    quarter, at = divmod(within, 32)
    low = block[half * 64 + (quarter % 2) * 32 + at]
    high = block[128 + half * 32 + at]
    bits = (low >> 4 if quarter >= 2 else low & 15) | ((high >> 2 * quarter & 3) << 4)
    scale = struct.unpack_from("b", block, 192 + index // 16)[0]
    d = float(np.frombuffer(block[208:210], np.float16)[0])
    return d * scale * (bits - 32)


@pytest.mark.parametrize(
    ("kind", "scales", "value"),
    [(Kind.Q4_K, (0, 2), q4_k_value), (Kind.Q6_K, (208,), q6_k_value)],
    ids=["Q4_K", "Q6_K"],
)
def test_k_quants_decode_as_ggml_lays_them_out(
    tmp_path: Path, kind: Kind, scales: tuple[int, ...], value: Callable[[bytes, int], float]
) -> None:
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(0).integers(0, 256, (3, 2 * num_bytes), dtype=np.uint8)
    for block in data.reshape(-1, num_bytes):
        for at in scales:
            block[at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("x", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GGUFFile(tmp_path / "k.gguf").load("x")
    expected = [
        [value(row[i // size * num_bytes :][:num_bytes].tobytes(), i % size) for i in range(512)]
        for row in data
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_metadata_says_the_shape_and_the_rope(tmp_path: Path) -> None:
    tiny = Tiny(theta=50_000.0, num_kv_heads=1)
    tensors = tiny.tensors()
    path = write_gguf(
        tmp_path / "tiny.gguf", tiny, tensors, metadata={"llama.rope.scaling.factor": 8.0}
    )
    by_gguf = GGUFCheckpoint(path).config
    by_hf = SafetensorsCheckpoint(write_folder(tmp_path / "tiny", tiny, tensors)).config
    assert by_gguf.rope == RopeConfig(theta=50_000.0, factor=8.0)
    for name in ("vocab_size", "num_layers", "num_kv_heads", "head_size", "max_position"):
        assert getattr(by_gguf, name) == getattr(by_hf, name)


def test_rope_divisors_come_from_their_tensor(tmp_path: Path) -> None:
    tiny = Tiny()
    divisors = torch.linspace(1, 8, tiny.head_size // 2)
    writer_tensors = {**tiny.tensors()}
    path = write_gguf(tmp_path / "tiny.gguf", tiny, writer_tensors, rope_divisors=divisors)
    assert GGUFCheckpoint(path).config.rope.divisors == pytest.approx(divisors.tolist())
