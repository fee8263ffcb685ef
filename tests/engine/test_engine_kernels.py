"""The compiled operations, and when there are none."""

import logging
import sys
from pathlib import Path

import pytest
import torch
from compiled_shapes import CPU, SHAPES, Shapes, all_shapes, config_of, make, needs_kernels
from tiny_models import Tiny

from expediter.engine.kernels import choice
from expediter.engine.kernels.choice import Kernels
from expediter.engine.kernels.operations import MAX_ROWS
from expediter.engine.operations import TorchOperations


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    return all_shapes(tmp_path_factory)


@needs_kernels
@pytest.mark.parametrize("num_rows", [1, 3, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize("name", SHAPES)
def test_operations_are_those_of_torch_in_float32(shapes: Shapes, name: str, num_rows: int) -> None:
    config, kernels = shapes[name]
    exact = TorchOperations(config, dtype=torch.float32, device=CPU)
    rows = 30 * torch.randn(num_rows, config.hidden_size).bfloat16()
    close = {"atol": 1e-3, "rtol": 0.01}
    found = kernels.operations.normalize(rows)
    torch.testing.assert_close(found.float(), exact.normalize(rows.float()), **close)

    inner = 5 * torch.randn(num_rows, 2 * config.intermediate_size).bfloat16()
    expected = exact.gate(inner.float())
    torch.testing.assert_close(kernels.operations.gate(inner).float(), expected, **close)


@needs_kernels
@pytest.mark.parametrize("num_rows", [1, 3, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize("name", SHAPES)
def test_placing_rotates_and_writes_like_torch_in_float32(
    shapes: Shapes, name: str, num_rows: int
) -> None:
    config, kernels = shapes[name]
    size, num_runs = config.head_size, 2 * config.num_kv_heads
    heads = torch.randn(num_rows, config.num_heads + num_runs, size).bfloat16()
    angles = torch.rand(num_rows, 1, size // 2) * 6
    cosine = torch.cat([angles.cos(), angles.cos()], -1).bfloat16()
    sine = torch.cat([-angles.sin(), angles.sin()], -1).bfloat16()
    slots = torch.randperm(200)[: num_rows * num_runs].view(num_rows, num_runs)
    expected, expected_pool = heads.float(), torch.zeros(200, size)
    TorchOperations(config, dtype=torch.float32, device=CPU).place(
        expected, (cosine.float(), sine.float()), pool=expected_pool, slots=slots
    )
    pool = torch.zeros(200, size).bfloat16()
    kernels.operations.place(heads, (cosine, sine), pool=pool, slots=slots)
    torch.testing.assert_close(heads.float(), expected, atol=0.02, rtol=0.01)
    torch.testing.assert_close(pool.float(), expected_pool, atol=0.02, rtol=0.01)


@needs_kernels
def test_a_gate_that_overflows_is_shut_or_open(shapes: Shapes) -> None:
    config, kernels = shapes["grouped heads"]
    rows = torch.ones(1, 2 * config.intermediate_size).bfloat16()
    rows[0, :4] = torch.tensor([-1e38, -100.0, 100.0, 1e38])
    gated = kernels.operations.gate(rows)[0, :4].float()
    assert gated[:2].abs().max() < 1e-30
    assert gated[2:].tolist() == rows[0, 2:4].tolist()


def is_plain(kernels: Kernels) -> bool:
    return kernels.attention is None and isinstance(kernels.operations, TorchOperations)


@needs_kernels
def test_what_the_functions_do_not_serve_is_left_to_torch(tmp_path: Path) -> None:
    """float32, blocks and heads that are not whole vectors, an MLP's width that is not."""
    config = config_of(SHAPES["grouped heads"], tmp_path)
    assert not is_plain(make(config))
    assert is_plain(make(config, dtype=torch.float32))
    assert is_plain(make(config, block_size=24))
    assert is_plain(make(config_of(Tiny(head_size=48), tmp_path)))
    assert is_plain(make(config_of(Tiny(head_size=32, intermediate_size=100), tmp_path)))


@needs_kernels
def test_without_llvmlite_torch_does_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(SHAPES["grouped heads"], tmp_path)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    monkeypatch.delitem(sys.modules, "expediter.engine.kernels.compiled", raising=False)
    assert is_plain(make(config))


@needs_kernels
def test_an_llvm_that_does_not_understand_is_told_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(SHAPES["grouped heads"], tmp_path)
    monkeypatch.setattr(choice.vectors, "DECLARATIONS", "declare what")
    with caplog.at_level(logging.WARNING):
        assert is_plain(make(config))
    assert "LLVM" in caplog.text
