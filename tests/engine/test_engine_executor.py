"""The executor as a worker uses it: alive while it computes, and tidy when it ends."""

import asyncio
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from driving import BLOCK_SIZE, NUM_BLOCKS, Driven, blocks_for, load, run
from tiny_models import Tiny, write_folder

from expediter.config import EngineConfig, KVCacheConfig
from expediter.engine.executor import load_executor
from expediter.engine.kv_store import KVStore
from expediter.engine.loading import fastest_dtype
from expediter.request import RequestId, SamplingParams
from expediter.scheduling.output import ScheduledChunk, SchedulerOutput
from expediter.transfer.layout import KVLayout

TINY = Tiny()
LAYOUT = KVLayout(
    num_layers=2,
    num_kv_heads=3,
    num_blocks=5,
    block_size=4,
    head_size=8,
    dtype="float32",
    element_bytes=4,
)
CPU = torch.device("cpu")


def test_an_executor_says_what_the_scheduler_must_know(tmp_path: Path) -> None:
    executor = load(write_folder(tmp_path / "tiny", TINY, TINY.tensors()), max_model_len=100)
    assert executor.num_blocks == NUM_BLOCKS
    assert executor.vocab_size == TINY.vocab_size
    assert executor.spec.max_model_len == 100
    assert executor.spec.kv_bytes(BLOCK_SIZE) == executor.layout.block_bytes
    assert (executor.device, executor.dtype) == (CPU, torch.float32)
    asyncio.run(executor.close())


def test_other_weights_or_another_dtype_give_another_namespace(tmp_path: Path) -> None:
    def namespace(name: str, seed: int, dtype: str) -> object:
        executor = load(write_folder(tmp_path / name / "m", TINY, TINY.tensors(seed)), dtype=dtype)
        asyncio.run(executor.close())
        return executor.namespace

    assert namespace("a", 0, "float32") == namespace("b", 0, "float32")
    assert namespace("a", 0, "float32") != namespace("c", 1, "float32")
    assert namespace("a", 0, "float32") != namespace("a", 0, "bfloat16")


def test_capacity_in_bytes_becomes_blocks(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "tiny", TINY, TINY.tensors())
    per_token = 2 * TINY.num_layers * TINY.num_kv_heads * TINY.head_size * 4
    executor = load_executor(
        EngineConfig(model=str(path), dtype="float32", device="cpu"),
        KVCacheConfig(block_size=16, capacity_bytes=10 * 16 * per_token + 1),
    )
    assert executor.num_blocks == 10
    asyncio.run(executor.close())


async def test_the_event_loop_runs_while_a_step_computes(tmp_path: Path) -> None:
    tiny = Tiny(num_layers=8, hidden_size=256, intermediate_size=1024)
    executor = load(write_folder(tmp_path / "tiny", tiny, tiny.tensors()))
    sequence = Driven(name="a", token_ids=[1] * 500, block_ids=blocks_for(501), num_output_tokens=1)
    computing = asyncio.ensure_future(run(executor, [sequence]))
    num_turns = 0
    while not computing.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns > 10
    await executor.close()


async def test_closing_waits_for_the_step_under_way(tmp_path: Path) -> None:
    executor = load(write_folder(tmp_path / "tiny", TINY, TINY.tensors()))
    chunk = ScheduledChunk(
        request_id=RequestId("a"),
        token_ids=[1] * 400,
        num_new_tokens=400,
        num_computed_tokens=0,
        block_ids=blocks_for(400),
        samples=True,
        sampling=SamplingParams(temperature=0),
    )
    step = asyncio.ensure_future(
        executor.execute(SchedulerOutput(chunks=[chunk], num_new_tokens=400))
    )
    await asyncio.sleep(0)
    await executor.close()
    assert len((await step).tokens) == 1


def piece(*, kv: int, head: int, block: int) -> int:
    """The same row in every layer's view."""
    return (block * LAYOUT.num_layers * 2 + kv) * LAYOUT.num_kv_heads + head


def test_the_pool_is_where_its_layout_says() -> None:
    store = KVStore(LAYOUT, dtype=torch.float32, device=CPU)
    base = store.pieces[0].data_ptr()
    assert store.pieces[0].view(*LAYOUT.shape).numel() * 4 == LAYOUT.num_bytes
    row = piece(kv=1, head=2, block=3)
    expected = LAYOUT.offset(layer=1, kv=1, head=2, block=3)
    assert store.pieces[1][row].data_ptr() - base == expected
    assert store.slots[1][row * LAYOUT.block_size].data_ptr() - base == expected
    store.close()


READER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
with mmap.mmap(fd, 0) as pool:
    at = int(sys.argv[2])
    sys.stdout.buffer.write(pool[at:at + 128])
    pool[at:at + 4] = b"\\0\\0\\0\\0"
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared pools need Linux's memfd")
def test_another_process_maps_the_pool_and_nothing_outlives_it() -> None:
    store = KVStore(LAYOUT, dtype=torch.float32, device=CPU)
    assert store.memory is not None
    path = store.memory.path
    row = piece(kv=1, head=1, block=2)
    store.pieces[1][row] = torch.arange(32.0)
    offset = LAYOUT.offset(layer=1, kv=1, head=1, block=2)
    read = subprocess.run(
        [sys.executable, "-c", READER, path, str(offset)], capture_output=True, check=True
    )
    assert torch.frombuffer(bytearray(read.stdout), dtype=torch.float32).tolist() == list(range(32))
    store.pieces[1][row, 1] = 9.0
    assert store.pieces[1][row, :2].tolist() == [0.0, 9.0]
    store.close()
    assert not Path(path).exists()


def test_an_untouched_pool_takes_no_memory() -> None:
    """4 GiB are promised; only what is written is allocated."""
    huge = KVLayout(
        num_layers=4,
        num_kv_heads=4,
        num_blocks=1 << 16,
        block_size=16,
        head_size=32,
        dtype="float32",
        element_bytes=4,
    )
    store = KVStore(huge, dtype=torch.float32, device=CPU)
    store.pieces[3][0] = 1.0
    assert store.memory is not None
    assert Path(store.memory.path).stat().st_blocks * 512 <= 64 * mmap.PAGESIZE
    store.close()


def test_sixteen_bits_only_where_the_processor_multiplies_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert fastest_dtype(CPU) == "bfloat16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert fastest_dtype(CPU) == "float32"
