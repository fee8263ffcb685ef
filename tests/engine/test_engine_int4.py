"""Products with GGUF's four-bit codes say what the dequantised weights say."""

from pathlib import Path

import pytest
import torch
from driving import Driven, blocks_for, load, run
from gguf import GGMLQuantizationType as Kind
from tiny_models import Tiny, quantized, reference_logits, write_folder, write_gguf

from expediter.engine.checkpoint import GGUFCheckpoint, open_checkpoint
from expediter.engine.int4 import int4_serves, joined
from expediter.engine.linear import Int4Linear, Int4Product, make_linear
from expediter.engine.weights import WeightLoader

CPU = torch.device("cpu")
TINY = Tiny(qkv_bias=True, output_bias=True, mlp_bias=True)
PROMPT = [5, 17, 3, 88, 41, 7, 7, 60, 12, 1]
BOTH = pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1], ids=lambda kind: kind.name)
needs_int4 = pytest.mark.skipif(
    not int4_serves(torch.bfloat16, CPU), reason="torch has no fast int4 product here"
)


@BOTH
@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_codes_times_scales_are_the_dequantised_matrix(
    tmp_path: Path, kind: Kind, part: str
) -> None:
    """Q and K too, whose rows llama.cpp reorders."""
    path = write_gguf(tmp_path / "tiny.gguf", TINY, TINY.tensors(), quantization=kind)
    checkpoint = GGUFCheckpoint(path)
    name = f"model.layers.1.self_attn.{part}_proj.weight"
    matrix = checkpoint.int4(name)
    assert matrix is not None
    scales, minimums = (x.repeat_interleave(32, 1) for x in (matrix.scales, matrix.minimums))
    expected = checkpoint.tensor(name, tuple(matrix.codes.shape))
    torch.testing.assert_close(scales * matrix.codes + minimums, expected)


@needs_int4
@BOTH
@pytest.mark.parametrize("num_rows", [1, Int4Product.max_rows, Int4Product.max_rows + 1])
def test_a_product_with_codes_is_the_dequantised_product(
    tmp_path: Path, kind: Kind, num_rows: int
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", TINY, TINY.tensors(), quantization=kind)
    checkpoint = GGUFCheckpoint(path)
    names = [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up")]
    matrices = [matrix for name in names if (matrix := checkpoint.int4(name)) is not None]
    weight = torch.cat([checkpoint.tensor(name, (96, 64)) for name in names])
    bias, gain = torch.randn(192).bfloat16(), torch.rand(64)
    many = make_linear((weight * gain).bfloat16(), bias)
    linear = Int4Linear(few=Int4Product(joined(matrices), gain), many=many, bias=bias)
    rows = torch.randn(num_rows, 64).bfloat16()
    expected = (rows.float() * gain) @ weight.T + bias.float()
    torch.testing.assert_close(linear(rows).float(), expected, atol=0.05, rtol=0.02)


@needs_int4
@BOTH
@pytest.mark.parametrize("chunk_size", [1, 10])
async def test_bfloat16_models_of_codes_stay_near_the_dequantised_reference(
    tmp_path: Path, kind: Kind, chunk_size: int
) -> None:
    tensors = TINY.tensors()
    path = write_gguf(tmp_path / "tiny.gguf", TINY, tensors, quantization=kind)
    executor = load(path, dtype="bfloat16")
    sequence = Driven(
        name="a",
        token_ids=list(PROMPT),
        block_ids=blocks_for(len(PROMPT) + 1),
        num_output_tokens=1,
        chunk_size=chunk_size,
        num_logprobs=executor.vocab_size,
    )
    await run(executor, [sequence])
    await executor.close()
    expected = reference_logits(TINY, quantized(tensors, kind), PROMPT)[-1].log_softmax(-1)
    found = torch.empty(TINY.vocab_size)
    for entry in sequence.outputs[0].logprobs:
        found[entry.token_id] = entry.logprob
    assert (expected.exp() * (expected - found)).sum() < 0.02  # Kullback-Leibler


@needs_int4
def test_only_bfloat16_and_only_four_bit_files_use_codes(tmp_path: Path) -> None:
    tensors = TINY.tensors()
    folder = write_folder(tmp_path / "folder", TINY, tensors)
    q8 = write_gguf(tmp_path / "q8.gguf", TINY, tensors, quantization=Kind.Q8_0)
    q4 = write_gguf(tmp_path / "q4.gguf", TINY, tensors, quantization=Kind.Q4_1)

    def uses_codes(path: Path, dtype: torch.dtype) -> bool:
        weights = WeightLoader(open_checkpoint(path), dtype=dtype, device=CPU).load()
        return isinstance(weights.layers[0].qkv, Int4Linear)

    assert uses_codes(q4, torch.bfloat16)
    assert not uses_codes(q4, torch.float32)
    assert not uses_codes(q8, torch.bfloat16)
    assert not uses_codes(folder, torch.bfloat16)
