"""Batches as vLLM and SGLang have written them over the years, and streams recorded from vLLM."""

import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expediter.cluster.kv_events import EventDecoder, MalformedEvents, block_hash
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored
from expediter.load import WorkerId
from expediter.routing.prefix_index import PrefixIndex
from expediter.routing.prompt import token_prompt


def decode(*events: object) -> list[object]:
    payload = msgspec.msgpack.encode([1.5, list(events), 0])
    return list(EventDecoder().decode(payload).events)


def test_maps_and_arrays_say_the_same() -> None:
    as_map = {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": 7,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": "poet",
        "extra_keys": [["poet", "salt"], None],
        "group_idx": 0,
    }
    as_array = ["BlockStored", [1, 2], 7, [1, 2, 3, 4], 2, None, "GPU", "poet"]
    as_array += [[["poet", "salt"], None], 0]
    expected = BlockStored(
        block_hashes=[b"\0" * 7 + b"\x01", b"\0" * 7 + b"\x02"],
        parent_block_hash=b"\0" * 7 + b"\x07",
        token_ids=[1, 2, 3, 4],
        block_size=2,
        lora_name="poet",
        extra_keys=[("poet", "salt"), None],
    )
    assert decode(as_map, as_array) == [expected, expected]


def test_the_oldest_arrays_stop_after_the_block_size() -> None:
    events = decode(
        ["BlockStored", [b"h"], None, [1], 1], ["BlockRemoved", [b"h"]], ["AllBlocksCleared"]
    )
    assert [type(event) for event in events] == [BlockStored, BlockRemoved, AllBlocksCleared]


@given(st.integers(-(2**63), -1))
def test_a_signed_hash_equals_its_unsigned_twin(value: int) -> None:
    assert block_hash(value) == block_hash(value + 2**64)


def test_blocks_off_the_device_and_unknown_events_are_left_out() -> None:
    stored = {"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1}
    assert (
        decode(
            {**stored, "medium": "CPU"},
            {"type": "BlockRemoved", "block_hashes": [1], "medium": "STORAGE"},
            {"type": "BlockPolished", "block_hashes": [1]},
        )
        == []
    )
    assert len(decode({**stored, "medium": "GPU"}, {**stored, "medium": None})) == 2


def test_groups_that_keep_a_window_are_left_out_with_their_removals() -> None:
    stored = {"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1}
    events = decode(
        {**stored, "group_idx": 1, "kv_cache_spec_kind": "sliding_window"},
        {**stored, "group_idx": 0, "kv_cache_spec_kind": "full_attention"},
        {"type": "BlockRemoved", "block_hashes": [1], "group_idx": 1},
        {"type": "BlockRemoved", "block_hashes": [1], "group_idx": 0},
    )
    assert [type(event) for event in events] == [BlockStored, BlockRemoved]


def test_sglangs_salt_belongs_to_the_first_block() -> None:
    stored = {"type": "BlockStored", "block_hashes": [-1], "token_ids": [1], "block_size": 1}
    first, later = decode(
        {**stored, "cache_salt": "s"}, {**stored, "parent_block_hash": -1, "cache_salt": "s"}
    )
    assert first.extra_keys == [("s",)]
    assert later.extra_keys is None


@given(st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3), st.lists))
def test_nothing_but_malformed_events_comes_of_any_payload(value: object) -> None:
    for payload in (value, [1.0, value], [1.0, [value]], [1.0, [{"type": "BlockStored"}, value]]):
        with contextlib.suppress(MalformedEvents):
            EventDecoder().decode(msgspec.msgpack.encode(payload))


def test_a_recorded_stream_of_vllm_leaves_the_blocks_it_should(traces: Path) -> None:
    """Replays each recording twice: into the index, and into a plain dictionary of prefixes."""
    recordings = sorted((traces / "vllm").glob("*.jsonl"))
    if not recordings:
        pytest.skip("no recorded streams")
    for recording in recordings:
        index = PrefixIndex(clock=lambda: 0.0, block_size=16, assumed_capacity=1)
        worker, decoder = WorkerId("w"), EventDecoder()
        index.add_worker(worker)
        held: dict[object, tuple[int, ...]] = {}
        block_size = 16
        for line in recording.read_text().splitlines():
            batch = json.loads(line)["batch"]
            payload = msgspec.msgpack.encode(_with_bytes(batch))
            for event in decoder.decode(payload).events:
                index.apply(worker, event)
            for event in batch[1]:
                block_size = event.get("block_size", block_size)
                _apply(held, event)
            assert index.num_blocks(worker) == len(held)
            for prefix in held.values():
                prompt = token_prompt([*prefix, 0])
                assert index.match(prompt) == {worker: len(prefix)}
        assert index.num_unknown_parents == 0
        assert block_size == 32


def _apply(held: dict[object, tuple[int, ...]], event: dict) -> None:
    if event["type"] == "BlockStored":
        prefix = held.get(event["parent_block_hash"], ())
        for i, name in enumerate(event["block_hashes"]):
            size = event["block_size"]
            prefix += tuple(event["token_ids"][i * size : (i + 1) * size])
            held[name] = prefix
    elif event["type"] == "BlockRemoved":
        for name in event["block_hashes"]:
            held.pop(name, None)
    else:
        held.clear()


def _with_bytes(value: object) -> object:
    if isinstance(value, str) and value.startswith("bytes"):
        return bytes.fromhex(value.partition(":")[2])
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_bytes(item) for key, item in value.items()}
    return value
