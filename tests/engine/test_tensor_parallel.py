"""The parts of a split model add up to the whole one."""

from itertools import chain
from pathlib import Path

import pytest
import torch
from driving import load
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import Tiny, write_folder, write_gguf

from expediter.engine.checkpoint import open_checkpoint
from expediter.engine.int4 import GROUP, int4_serves
from expediter.engine.linear import Int4Linear
from expediter.engine.shard import Shard
from expediter.engine.weights import LayerWeights, ModelWeights, WeightLoader
from expediter.errors import ConfigError

CPU = torch.device("cpu")
TINY = Tiny(
    vocab_size=97,
    intermediate_size=160,  # five groups: ranks get 1, 2 and 2
    num_heads=6,
    num_kv_heads=3,
    tied=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)
SIZE = 3
needs_int4 = pytest.mark.skipif(
    not int4_serves(torch.bfloat16, CPU), reason="torch has no fast int4 product here"
)


@given(
    length=st.integers(0, 300),
    size=st.integers(1, 8),
    unit=st.sampled_from([1, 32]),
)
def test_shares_are_a_partition_in_whole_units_and_even(length: int, size: int, unit: int) -> None:
    parts = [Shard(rank=rank, size=size).part(length * unit, unit=unit) for rank in range(size)]
    assert list(chain(*parts)) == list(range(length * unit))
    counts = [len(part) // unit for part in parts]
    assert all(len(part) % unit == 0 for part in parts)
    assert max(counts) - min(counts) <= 1


def test_sizes_that_do_not_divide_the_kv_heads_are_refused_with_those_that_do(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "tiny", TINY, TINY.tensors())
    for size in (2, 6, 9):
        with pytest.raises(ConfigError, match=f"tensor-parallel is {size}; the 3 .* over 1, 3$"):
            load(folder, tensor_parallel=size)


def loaded(path: Path, dtype: torch.dtype, shard: Shard | None = None) -> ModelWeights:
    checkpoint = open_checkpoint(path)
    return WeightLoader(checkpoint, dtype=dtype, device=CPU, shard=shard or Shard()).load()


def all_shards(path: Path, dtype: torch.dtype) -> list[ModelWeights]:
    return [loaded(path, dtype, Shard(rank=rank, size=SIZE)) for rank in range(SIZE)]


def columns_of(width: int, shard: Shard, unit: int) -> slice:
    part = shard.part(width, unit=unit)
    return slice(part.start, part.stop)


def sum_of_parts(
    parts: list[LayerWeights], name: str, rows: torch.Tensor, *, unit: int
) -> torch.Tensor:
    """What an all-reduce would give."""
    shards = [Shard(rank=rank, size=SIZE) for rank in range(SIZE)]
    found = [
        getattr(part, name)(rows[:, columns_of(rows.shape[1], shard, unit)].contiguous()).float()
        for part, shard in zip(parts, shards, strict=True)
    ]
    return torch.stack(found).sum(0)


def test_products_of_parts_are_parts_of_products(tmp_path: Path) -> None:
    """Biases too: those of a sum are added once."""
    path = write_folder(tmp_path / "tiny", TINY, TINY.tensors())
    whole, parts = loaded(path, torch.float32), all_shards(path, torch.float32)
    rows = torch.randn(5, TINY.hidden_size)
    expected, ours = whole.layers[1], [part.layers[1] for part in parts]

    joined = torch.cat([part.head(rows) for part in parts], -1)
    torch.testing.assert_close(joined[:, : TINY.vocab_size], whole.head(rows))
    assert not joined[:, TINY.vocab_size :].any()
    assert len({part.head(rows).shape for part in parts}) == 1

    heads = [layer.qkv(rows).view(5, 4, TINY.head_size) for layer in ours]  # 2 queries, K, V
    split = expected.qkv(rows).view(5, 12, TINY.head_size).split([6, 3, 3], 1)
    for piece, section in zip(split, ([0, 1], [2], [3]), strict=True):
        torch.testing.assert_close(torch.cat([each[:, section] for each in heads], 1), piece)

    inner = [layer.gate_up(rows).chunk(2, -1) for layer in ours]
    for number, piece in enumerate(expected.gate_up(rows).chunk(2, -1)):
        torch.testing.assert_close(torch.cat([each[number] for each in inner], -1), piece)

    attended = torch.randn(5, TINY.num_heads * TINY.head_size)
    found = sum_of_parts(ours, "attention_output", attended, unit=TINY.head_size)
    torch.testing.assert_close(found, expected.attention_output(attended))
    activated = torch.randn(5, TINY.intermediate_size)
    found = sum_of_parts(ours, "down", activated, unit=GROUP)
    torch.testing.assert_close(found, expected.down(activated))


@needs_int4
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1], ids=lambda kind: kind.name)
def test_four_bit_codes_are_split_between_groups(tmp_path: Path, kind: Kind) -> None:
    """The parts of the codes say what the whole codes say. Two heads of 16 are one group."""
    path = write_gguf(tmp_path / "tiny.gguf", TINY, TINY.tensors(), quantization=kind)
    whole, parts = loaded(path, torch.bfloat16), all_shards(path, torch.bfloat16)
    expected, ours = whole.layers[0], [part.layers[0] for part in parts]
    for name, width, unit in (("attention_output", 96, 32), ("down", 160, 32)):
        assert all(isinstance(getattr(layer, name), Int4Linear) for layer in ours)
        rows = torch.randn(2, width).bfloat16()
        found = sum_of_parts(ours, name, rows, unit=unit)
        torch.testing.assert_close(
            found, getattr(expected, name)(rows).float(), atol=0.05, rtol=0.02
        )


@needs_int4
def test_a_matrix_whose_groups_would_be_cut_is_dense(tmp_path: Path) -> None:
    """One head of 16 a rank is half a group."""
    tiny = Tiny(num_heads=4, num_kv_heads=4)
    path = write_gguf(tmp_path / "tiny.gguf", tiny, tiny.tensors(), quantization=Kind.Q4_1)
    whole = loaded(path, torch.bfloat16).layers[0]
    shards = [Shard(rank=rank, size=4) for rank in range(4)]
    ours = [loaded(path, torch.bfloat16, shard).layers[0] for shard in shards]
    assert isinstance(whole.attention_output, Int4Linear)
    assert not any(isinstance(layer.attention_output, Int4Linear) for layer in ours)
    rows = torch.randn(2, 64).bfloat16()
    found = [
        layer.attention_output(rows[:, columns_of(64, shard, 16)].contiguous()).float()
        for layer, shard in zip(ours, shards, strict=True)
    ]
    torch.testing.assert_close(
        torch.stack(found).sum(0), whole.attention_output(rows).float(), atol=0.05, rtol=0.02
    )
