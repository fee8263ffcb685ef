"""What a cache tells the world: which prefixes it gained and lost.

Field names are vLLM's (vllm/distributed/kv_events.py). A listener that applies every event
in order holds exactly the set of full blocks the cache holds. Structs, because a busy worker
makes thousands a second.
"""

from collections.abc import Sequence

import msgspec


class BlockStored(msgspec.Struct, frozen=True, kw_only=True):
    """A run of consecutive full blocks entered the cache, each the child of the one before.

    `token_ids` is flat: `len(block_hashes) * block_size` ids (empty for simulated prompts).
    `extra_keys` has one entry a block: what besides tokens names it, in vLLM's order (adapter
    name, multimodal content hash and offset, cache salt on the first block), or None.
    """

    block_hashes: Sequence[bytes]
    parent_block_hash: bytes | None
    token_ids: Sequence[int]
    block_size: int
    lora_name: str | None = None
    extra_keys: Sequence[tuple[object, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """These blocks left the cache, children before parents."""

    block_hashes: Sequence[bytes]


class AllBlocksCleared(msgspec.Struct, frozen=True):
    """The cache is empty."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
