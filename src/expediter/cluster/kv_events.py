"""KV events off the wire: vLLM's and SGLang's batches as the events of `kvcache/events.py`.

A batch is MessagePack `[timestamp, [event, ...], rank]`. An event is a map with `type`, or in
older releases an array that begins with it; unknown types and keys are ignored. Block hashes
are unsigned or signed 64-bit integers or bytes, and become opaque bytes here.

Only what serves a hit right away counts as cached: blocks on the device. Copies in host memory
or on disk are left out, and so are the groups of hybrid models that keep only a window of the
prompt, because a window is not a prefix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent

DEVICE_MEDIA = frozenset({None, "GPU"})  # vLLM says GPU on CPU too
PREFIX_KINDS = frozenset({None, "full_attention", "mla_attention", "mla"})

_FIELDS: Mapping[str, Sequence[str]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


class MalformedEvents(ValueError):
    """A payload is not a batch of KV events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """What one message said, in order; `timestamp` is the publisher's clock."""

    timestamp: float
    events: Sequence[KVCacheEvent]


class EventDecoder:
    """Decodes one publisher's batches; remembers which cache groups do not hold prefixes."""

    def __init__(self) -> None:
        self._window_groups: set[int] = set()
        self.num_ignored = 0

    def decode(self, payload: bytes) -> EventBatch:
        """Raises MalformedEvents."""
        try:
            timestamp, raw_events, *_ = msgspec.msgpack.decode(payload)
            events = [event for raw in raw_events if (event := self._event(raw)) is not None]
            return EventBatch(timestamp=float(timestamp), events=events)
        except (msgspec.DecodeError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise MalformedEvents(str(error)) from error

    def _event(self, raw: object) -> KVCacheEvent | None:
        kind, fields = _named(raw)
        if fields.get("medium") not in DEVICE_MEDIA or self._is_window(fields):
            return None
        if kind == "BlockStored":
            return _block_stored(fields)
        if kind == "BlockRemoved":
            return BlockRemoved(block_hashes=[block_hash(h) for h in _list(fields["block_hashes"])])
        if kind == "AllBlocksCleared":
            return AllBlocksCleared()
        self.num_ignored += 1
        return None

    def _is_window(self, fields: Mapping[str, object]) -> bool:
        group = fields.get("group_idx")
        if not isinstance(group, int):
            return False
        if fields.get("kv_cache_spec_kind") not in PREFIX_KINDS:
            self._window_groups.add(group)
        return group in self._window_groups


def block_hash(value: object) -> bytes:
    """An engine's block hash as bytes; a signed integer equals its unsigned twin."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return (value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big")
    raise MalformedEvents(f"a block hash is bytes or an integer, not {type(value).__name__}")


def _named(raw: object) -> tuple[str, Mapping[str, object]]:
    """An event's type and fields, from a map or from an array."""
    if isinstance(raw, dict):
        return str(raw.get("type")), raw
    if isinstance(raw, list) and raw:
        kind = str(raw[0])
        return kind, dict(zip(_FIELDS.get(kind, ()), raw[1:], strict=False))
    raise MalformedEvents("an event is a map or an array")


def _block_stored(fields: Mapping[str, object]) -> BlockStored:
    parent = fields.get("parent_block_hash")
    size = fields["block_size"]
    name = fields.get("lora_name")
    if not isinstance(size, int) or size < 1:
        raise MalformedEvents("block_size must be a positive integer")
    return BlockStored(
        block_hashes=[block_hash(h) for h in _list(fields["block_hashes"])],
        parent_block_hash=None if parent is None else block_hash(parent),
        token_ids=_list(fields["token_ids"]),
        block_size=size,
        lora_name=name if isinstance(name, str) else None,
        extra_keys=_extra_keys(fields),
    )


def _extra_keys(fields: Mapping[str, object]) -> list[tuple[object, ...] | None] | None:
    """vLLM's extra keys a block; SGLang has one salt for the event, which names its first block."""
    extras = fields.get("extra_keys")
    if isinstance(extras, list):
        return [tuple(extra) if extra else None for extra in extras]
    salt = fields.get("cache_salt")
    if salt and fields.get("parent_block_hash") is None:
        return [(salt,)]
    return None


def _list(value: object) -> list[int]:
    if not isinstance(value, list):
        raise MalformedEvents("a list was expected")
    return value
