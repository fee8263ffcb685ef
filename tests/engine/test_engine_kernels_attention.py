"""The compiled attention reads scattered blocks, and nothing but what it should."""

import math
import random

import pytest
import torch
from compiled_shapes import (
    NUM_BLOCKS,
    NUM_LAYERS,
    SHAPES,
    Shapes,
    all_shapes,
    block_size_of,
    needs_kernels,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from expediter.engine.architecture import ModelConfig
from expediter.engine.batch import PagedDecodes
from expediter.engine.kernels.choice import Kernels


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    return all_shapes(tmp_path_factory)


def pool_of(config: ModelConfig, block_size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (NUM_BLOCKS, NUM_LAYERS, 2, config.num_kv_heads, block_size, config.head_size)
    return torch.randn(shape, generator=generator).bfloat16()


def last_layer(pool: torch.Tensor) -> torch.Tensor:
    """Its pieces, as a store has them."""
    first = pool[0, -1]
    return pool.view(-1)[first.storage_offset() :].view(-1, first[0, 0].numel())


def scattered_tables(lengths: list[int], block_size: int, seed: int) -> list[list[int]]:
    free = random.Random(seed).sample(range(NUM_BLOCKS), NUM_BLOCKS)
    return [[free.pop() for _ in range(-(-length // block_size))] for length in lengths]


def decodes_of(kernels: Kernels, tables: list[list[int]], lengths: list[int]) -> PagedDecodes:
    assert kernels.attention is not None
    width = max(map(len, tables))
    return PagedDecodes(
        rows=slice(0, len(lengths)),
        tables=torch.tensor([table + [0] * (width - len(table)) for table in tables]),
        lengths=torch.tensor(lengths),
        longest=max(lengths),
        attention=kernels.attention,
    )


def exact_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[KV head, query of it, element] over [KV head, slot, element]."""
    scores = query.double() @ keys.double().transpose(1, 2)
    return scores.softmax(-1) @ values.double()


def used(pool: torch.Tensor, table: list[int], length: int) -> torch.Tensor:
    """The last layer's keys and values [2, KV head, slot, element]."""
    return pool[table, -1].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]


def queries(config: ModelConfig, num_requests: int, seed: int) -> torch.Tensor:
    """As a view of a product's rows, like the model's."""
    generator = torch.Generator().manual_seed(seed)
    num_heads = config.num_heads + 2 * config.num_kv_heads
    heads = torch.randn((num_requests, num_heads, config.head_size), generator=generator)
    shape = (num_requests, config.num_kv_heads, -1, config.head_size)
    return heads.bfloat16()[:, : config.num_heads].view(shape)


@needs_kernels
@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_attention_over_scattered_blocks_is_dense_attention(
    shapes: Shapes, name: str, lengths: list[int], seed: int
) -> None:
    """What a block has past the context is another request's, or never was a number."""
    config, kernels = shapes[name]
    block_size = block_size_of(name)
    pool = pool_of(config, block_size, seed)
    tables = scattered_tables(lengths, block_size, seed)
    query = queries(config, len(lengths), seed)
    expected = [
        exact_attention(query[row], *used(pool, tables[row], length))
        for row, length in enumerate(lengths)
    ]
    spoilt = torch.full_like(pool, math.nan)
    for table, length in zip(tables, lengths, strict=True):
        for slot in range(length):
            block, inside = divmod(slot, block_size)
            place = (table[block], -1, slice(None), slice(None), inside)
            spoilt[place] = pool[place]
    decodes = decodes_of(kernels, tables, lengths)
    found = decodes.attend(query, last_layer(spoilt))
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=0.02, rtol=0.02)


@needs_kernels
def test_attention_depends_on_no_stranger_and_no_number_of_threads(shapes: Shapes) -> None:
    config, kernels = shapes["grouped heads"]
    lengths = [300, 1, 17, 256, 257]
    pool, tables = pool_of(config, 16, 1), scattered_tables(lengths, 16, 1)
    query = queries(config, len(lengths), 1)
    pieces = last_layer(pool)
    together = decodes_of(kernels, tables, lengths).attend(query, pieces)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for row in range(len(lengths)):
            alone = decodes_of(kernels, [tables[row]], [lengths[row]])
            assert torch.equal(alone.attend(query[row : row + 1], pieces)[0], together[row])
    finally:
        torch.set_num_threads(before)
