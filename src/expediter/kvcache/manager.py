"""The scheduler's one door to the KV cache.

A request is a `KVSequence`: it is opened, admitted (which finds its longest cached prefix and
takes slots for the rest), grown by slots as it generates, published as its blocks fill, and
freed. A block becomes visible to others once its KV is computed, never before, so a hit never
depends on a step that may yet fail. When a block fills whose name is cached already, because
two requests computed the same text side by side, the later one adopts the cached block and
returns its own: one block a name, as in SGLang's radix tree.
"""

from typing import TYPE_CHECKING, assert_never, cast

from expediter.config import KVCacheConfig
from expediter.kvcache.block_pool import BlockPool
from expediter.kvcache.events import BlockStored, KVCacheEvent
from expediter.kvcache.hashing import (
    TEXT_ONLY,
    BlockHash,
    BlockHasher,
    CacheNamespace,
    KVContext,
    items_in_block,
)
from expediter.kvcache.pin import Pin
from expediter.kvcache.prefix_cache import HashPrefixCache, Match, PrefixCache
from expediter.kvcache.radix_cache import RadixPrefixCache
from expediter.kvcache.run import Run
from expediter.kvcache.sequence import KVSequence
from expediter.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence


class KVCacheManager:
    """Slots and prefixes of one worker.

    `num_queried_tokens` counts prompt tokens of requests admitted for the first time,
    `num_hit_tokens` how many of those the cache held.
    """

    def __init__(
        self, config: KVCacheConfig, *, num_blocks: int, namespace: CacheNamespace
    ) -> None:
        self.block_size = config.block_size
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._prefix_caching = config.prefix_caching
        self._seed = namespace.seed
        self._cache = _prefix_cache(config)
        self._pool = BlockPool(num_blocks, cache=self._cache)

    @property
    def num_total_blocks(self) -> int:
        """Blocks there are."""
        return self._pool.num_total_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that requests hold."""
        return self._pool.num_used_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be had now, evicting cached ones."""
        return self._pool.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Blocks a prompt could hit, held or not."""
        return len(self._cache)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def open(self, request: Request) -> KVSequence:
        """The request's sequence, its full blocks named; it holds nothing yet."""
        context, hasher = _context(request), None
        names: Sequence[BlockHash] = ()
        if self._prefix_caching:
            if request.block_hashes is None:
                hasher = BlockHasher(block_size=self.block_size, seed=self._seed, context=context)
            else:
                names = cast("Sequence[BlockHash]", request.block_hashes)  # not copied: may be many
        return KVSequence(
            request.prompt_token_ids,
            num_tokens=request.num_prompt_tokens,
            context=context,
            hasher=hasher,
            block_hashes=names,
        )

    def num_cached_tokens(self, sequence: KVSequence) -> int:
        """Tokens that admission would find cached; at least one token is always left to compute.

        Changes nothing; costs nothing while the cache has not changed since the last call.
        """
        if sequence.matched_version != self._cache.version:
            match = self._cache.match(sequence.block_hashes, limit=self._max_hit(sequence))
            sequence.matched_blocks = match.num_blocks
            sequence.matched_version = self._cache.version
        return sequence.matched_blocks * self.block_size

    def max_cached_tokens(self, sequence: KVSequence) -> int:
        """The most tokens that `num_cached_tokens` could ever be."""
        return self._max_hit(sequence) * self.block_size

    def admit(self, sequence: KVSequence, *, headroom: int = 0) -> int | None:
        """Take slots for all of the sequence's tokens; how many tokens need no computing.

        None, and nothing changes, unless `headroom` blocks would stay free.
        """
        assert sequence.run is None, "admitted twice"
        pool = self._pool
        run, num_hits, num_beyond = self._cache.match(
            sequence.block_hashes, limit=self._max_hit(sequence)
        )
        num_new = self.num_blocks_for(sequence.num_tokens) - num_hits
        num_pinned = pool.num_unheld(run, num_beyond=num_beyond) if num_hits else 0
        if num_new + num_pinned + headroom > pool.num_free_blocks:
            return None
        sequence.run = run = pool.hold(run, num_beyond=num_beyond)
        block_ids = pool.allocate(num_new)
        assert block_ids is not None
        sequence.block_ids = run.path_ids() + block_ids if num_hits else block_ids
        sequence.num_cached_blocks = num_hits
        return num_hits * self.block_size

    def count_lookup(self, *, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """Add one request to the hit statistics."""
        self.num_queried_tokens += num_queried_tokens
        self.num_hit_tokens += num_hit_tokens

    def allocate_slots(self, sequence: KVSequence, num_tokens: int) -> bool:
        """Make room for the sequence's first `num_tokens` tokens; False if memory is full."""
        num_new = self.num_blocks_for(num_tokens) - len(sequence.block_ids)
        if num_new <= 0:
            return True
        block_ids = self._pool.allocate(num_new)
        if block_ids is None:
            return False
        sequence.block_ids += block_ids
        return True

    def publish(self, sequence: KVSequence, num_computed_tokens: int) -> None:
        """Make every full block of the first `num_computed_tokens` tokens findable."""
        num_full = num_computed_tokens // self.block_size
        start, run = sequence.num_cached_blocks, sequence.run
        if num_full <= start or not self._prefix_caching:
            return
        if num_full > len(sequence.block_hashes):
            sequence.name_blocks()
            num_full = min(num_full, len(sequence.block_hashes))
        assert run is not None, "it holds nothing"
        match = self._cache.match(sequence.block_hashes, limit=num_full, after=run, start=start)
        if match.num_blocks > start:
            self._adopt(sequence, run, match)
            start = match.num_blocks
        if num_full > start:
            self._store(sequence, end=num_full)

    def pin(self, sequence: KVSequence) -> Pin:
        """Hold the blocks it has now until `unpin`, whatever becomes of the sequence."""
        assert sequence.run is not None, "it holds nothing"
        pin = Pin(
            self._pool.hold(sequence.run),
            block_ids=sequence.block_ids,
            num_cached_blocks=sequence.num_cached_blocks,
        )
        self._pool.share(pin.nameless)
        sequence.pins += (pin,)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Let go of what a pin holds; nothing happens the second time."""
        if pin.run is None:
            return
        self._pool.give_back(pin.displaced)
        self._pool.give_back(pin.nameless)
        self._pool.release(pin.run)
        pin.run, pin.nameless, pin.displaced = None, [], []

    def free(self, sequence: KVSequence) -> None:
        """Let go of all its blocks; what is cached stays cached until its slots are needed."""
        if sequence.run is not None:
            self._pool.give_back(sequence.block_ids[sequence.num_cached_blocks :])
            self._pool.release(sequence.run)
        sequence.run = None
        sequence.block_ids = []
        sequence.num_cached_blocks = 0
        sequence.pins = ()
        sequence.matched_version = -1  # it may have grown since the last match

    def take_events(self) -> list[KVCacheEvent]:
        """What changed in the cache since the last call, in order. Call it every step."""
        events, self._pool.events = self._pool.events, []
        return events

    def reset_prefix_cache(self) -> bool:
        """Forget every prefix; False, and nothing changes, while any request holds blocks."""
        return self._pool.clear_cache()

    def _max_hit(self, sequence: KVSequence) -> int:
        """Blocks that may be hit: the last token's logits must be computed."""
        return min((sequence.num_tokens - 1) // self.block_size, len(sequence.block_hashes))

    def _adopt(self, sequence: KVSequence, before: Run, match: Match) -> None:
        """Swap blocks whose names others published first for the published ones."""
        pool, start, end = self._pool, sequence.num_cached_blocks, match.num_blocks
        own = sequence.block_ids[start:end]
        sequence.run = run = pool.hold(match.run, num_beyond=match.num_beyond)
        sequence.block_ids[start:end] = run.path_ids()[start:]
        sequence.num_cached_blocks = end
        for pin in sequence.pins:
            pin.displaced += self._move(pin, run, num_blocks=end - start)
        pool.release(before)
        pool.give_back(own)

    def _move(self, pin: Pin, run: Run, *, num_blocks: int) -> list[int]:
        """A pin's sequence has `num_blocks` more cached, and they end with `run`: so has the pin.

        Those that were nameless to the pin so far, and of them no more than it holds.
        """
        if pin.run is None or not pin.nameless:
            return []
        taken = pin.take_nameless(num_blocks)
        held, pin.run = pin.run, self._pool.hold(run, num_beyond=num_blocks - len(taken))
        self._pool.release(held)
        return taken

    def _store(self, sequence: KVSequence, *, end: int) -> None:
        """Publish the sequence's own blocks up to `end`."""
        assert sequence.run is not None, "it holds nothing"
        start, context, size = sequence.num_cached_blocks, sequence.context, self.block_size
        names = sequence.block_hashes[start:end]
        sequence.run = run = self._cache.insert(sequence.run, names, sequence.block_ids[start:end])
        sequence.num_cached_blocks = end
        for pin in sequence.pins:
            self._pool.unshare(self._move(pin, run, num_blocks=end - start))
        extra_keys = None
        if context is not TEXT_ONLY:
            extra_keys = _extra_keys(context, range(start, end), block_size=size)
        self._pool.events.append(
            BlockStored(
                block_hashes=names,
                parent_block_hash=sequence.block_hashes[start - 1] if start else None,
                token_ids=sequence.token_ids[start * size : end * size],
                block_size=size,
                lora_name=context.lora_name,
                extra_keys=extra_keys,
            )
        )


def _prefix_cache(config: KVCacheConfig) -> PrefixCache:
    match config.prefix_cache:
        case "hash":
            return HashPrefixCache()
        case "radix":
            return RadixPrefixCache()
        case _:
            assert_never(config.prefix_cache)


def _context(request: Request) -> KVContext:
    """An empty adapter name or salt is none: events do not tell them apart either."""
    if not (request.lora_name or request.cache_salt or request.multimodal):
        return TEXT_ONLY
    return KVContext(
        lora_name=request.lora_name or None,
        cache_salt=request.cache_salt or None,
        multimodal=request.multimodal,
    )


def _extra_keys(
    context: KVContext, blocks: range, *, block_size: int
) -> list[tuple[object, ...] | None] | None:
    """What besides tokens names each block, in vLLM's order; None when nothing does."""
    keys = [_block_keys(context, index * block_size, block_size=block_size) for index in blocks]
    return keys if any(keys) else None


def _block_keys(context: KVContext, start: int, *, block_size: int) -> tuple[object, ...] | None:
    keys: list[object] = [context.lora_name] if context.lora_name else []
    items = items_in_block(context.multimodal, start=start, block_size=block_size)
    keys += [(item.content_hash, item.offset - start) for item in items]
    if context.cache_salt and start == 0:
        keys.append(context.cache_salt)
    return tuple(keys) or None
