"""The compiled products with four-bit codes, alone and in models."""

from pathlib import Path

import pytest
import torch
from compiled_shapes import SHAPES, Shapes, all_shapes, needs_kernels
from driving import Driven, load, run
from gguf import GGMLQuantizationType as Kind
from tiny_models import quantized, reference_logits, write_gguf

from expediter.engine.int4 import GROUP, Int4Matrix
from expediter.engine.kernels.products import MAX_ROWS


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    return all_shapes(tmp_path_factory)


def random_matrix(num_rows: int, width: int, *, scale: float, seed: int = 0) -> Int4Matrix:
    generator = torch.Generator().manual_seed(seed)
    groups = (num_rows, width // GROUP)
    return Int4Matrix(
        codes=torch.randint(16, (num_rows, width), generator=generator, dtype=torch.uint8),
        scales=scale * (0.1 + torch.rand(groups, generator=generator)),
        minimums=-8 * scale * torch.rand(groups, generator=generator),
    )


def exact_product(rows: torch.Tensor, matrix: Int4Matrix, gain: torch.Tensor) -> torch.Tensor:
    scales, minimums = (x.repeat_interleave(GROUP, 1) for x in (matrix.scales, matrix.minimums))
    weight = matrix.codes.double() * scales.double() + minimums.double()
    return (rows.double() * gain.double()) @ weight.T


@needs_kernels
@pytest.mark.parametrize("num_rows", [*range(1, 10), 16, MAX_ROWS])
@pytest.mark.parametrize(("columns", "width"), [(16, 32), (48, 96), (192, 1024)])
def test_a_product_with_codes_is_the_dequantised_product(
    shapes: Shapes, num_rows: int, columns: int, width: int
) -> None:
    _, kernels = shapes["grouped heads"]
    matrix, gain = random_matrix(columns, width, scale=0.01), 1 + torch.rand(width)
    rows = torch.randn(num_rows, width).bfloat16()
    found = kernels.make_int4(matrix, gain)(rows)
    expected = exact_product(rows, matrix, gain)
    assert (found - expected).abs().max() < 0.01 * expected.abs().max()


@needs_kernels
@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1.0, 1e5])
def test_scales_that_float16_cannot_hold_lose_nothing(shapes: Shapes, scale: float) -> None:
    _, kernels = shapes["grouped heads"]
    matrix, rows = random_matrix(32, 64, scale=scale), torch.randn(2, 64).bfloat16()
    found = kernels.make_int4(matrix, None)(rows)
    expected = exact_product(rows, matrix, torch.ones(64))
    assert (found - expected).abs().max() < 0.01 * expected.abs().max()


@needs_kernels
def test_a_matrix_of_zeros_makes_zeros(shapes: Shapes) -> None:
    _, kernels = shapes["grouped heads"]
    matrix = random_matrix(16, 32, scale=0.0)
    assert not kernels.make_int4(matrix, None)(torch.randn(3, 32).bfloat16()).any()


@needs_kernels
def test_a_scale_that_is_no_number_spoils_its_column_alone(shapes: Shapes) -> None:
    _, kernels = shapes["grouped heads"]
    matrix = random_matrix(32, 64, scale=0.01)
    matrix.scales[17, 1] = torch.nan
    found = kernels.make_int4(matrix, None)(torch.ones(2, 64).bfloat16())
    assert found.isnan().any(0).nonzero().flatten().tolist() == [17]


@needs_kernels
def test_a_row_of_a_product_does_not_depend_on_the_others(shapes: Shapes) -> None:
    _, kernels = shapes["grouped heads"]
    product = kernels.make_int4(random_matrix(64, 256, scale=0.01), None)
    rows = torch.randn(MAX_ROWS, 256).bfloat16()
    together = product(rows)
    for num_rows in range(1, 20):
        assert torch.equal(product(rows[-num_rows:]), together[-num_rows:])


@needs_kernels
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1], ids=lambda kind: kind.name)
async def test_models_of_codes_stay_near_the_dequantised_reference(
    tmp_path: Path, name: str, kind: Kind
) -> None:
    """One token a step, and more than the functions take."""
    tiny = SHAPES[name]
    tensors = tiny.tensors()
    executor = load(
        write_gguf(tmp_path / "tiny.gguf", tiny, tensors, quantization=kind),
        dtype="bfloat16",
        block_size=16,
    )
    prompt = torch.randint(tiny.vocab_size, (40,)).tolist()
    sequences = [
        Driven(
            name=str(chunk_size),
            token_ids=list(prompt),
            block_ids=[3 * chunk_size + i for i in (2, 0, 1)],
            num_output_tokens=1,
            chunk_size=chunk_size,
            num_logprobs=executor.vocab_size,
        )
        for chunk_size in (1, 39)
    ]
    await run(executor, sequences)
    await executor.close()
    expected = reference_logits(tiny, quantized(tensors, kind), prompt)[-1].log_softmax(-1)
    for sequence in sequences:
        found = torch.empty(tiny.vocab_size)
        for entry in sequence.outputs[0].logprobs:
            found[entry.token_id] = entry.logprob
        assert (expected.exp() * (expected - found)).sum() < 0.03  # Kullback-Leibler
