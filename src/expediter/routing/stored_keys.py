"""Keys for the blocks that an engine's event tells of, from the tokens in it."""

from collections.abc import Sequence

from expediter.kvcache.events import BlockStored
from expediter.routing.chains import BlockKey, chain_keys
from expediter.routing.prompt import pack_extra, pack_tokens


def stored_keys(event: BlockStored, parent: BlockKey) -> Sequence[BlockKey]:
    """The stored blocks' keys; `parent` is that of the block before."""
    return chain_keys(
        pack_tokens(event.token_ids),
        block_size=event.block_size,
        parent=parent,
        extras=_packed_extras(event),
    )


def _packed_extras(event: BlockStored) -> list[bytes]:
    """Each block's extra keys but the adapter's name, which the chain's seed already carries."""
    extras = event.extra_keys
    if not extras or not any(extras):
        return []
    packed = []
    for extra in extras:
        entries = list(extra or ())
        if entries and event.lora_name is not None and entries[0] == event.lora_name:
            del entries[0]
        packed.append(pack_extra(entries))
    return packed
