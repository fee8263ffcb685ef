"""A model whose KV says what it was computed from, and a listener that believes every event.

The value written to a slot is the whole text up to its token, so reading a request's context
through its block table must give back exactly the prefixes of its own text. Any mix-up of
blocks, any hit on something not computed yet, shows at once.
"""

from collections import Counter
from collections.abc import Sequence

from expediter.config import KVCacheConfig, SchedulerConfig
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from expediter.kvcache.hashing import BlockHash, CacheNamespace
from expediter.kvcache.manager import KVCacheManager
from expediter.kvcache.prefix_cache import HashPrefixCache, PrefixCache
from expediter.kvcache.run import Run
from expediter.request import Request, RequestId, RequestOutput, SampledToken, SamplingParams
from expediter.scheduling.output import ModelOutput, SchedulerOutput
from expediter.scheduling.scheduler import Scheduler

NAMESPACE = CacheNamespace(model="oracle")
BLOCK_SIZE = 2

Text = tuple[object, ...]


def next_token(text: Text) -> int:
    """What the model says next; small, so that texts meet again."""
    return (sum(hash(token) for token in text) * 7 + len(text)) % 3


class KVOracle:
    """Executes steps. Texts are (salt, token, token, ...): the salt is part of what is computed."""

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        self.texts: dict[RequestId, Text] = {}
        self.slots: dict[tuple[int, int], Text] = {}
        self.num_computed_tokens = 0

    def add(self, request: Request) -> None:
        self.texts[request.request_id] = (request.cache_salt or "", *request.prompt_token_ids)

    def execute(self, output: SchedulerOutput) -> ModelOutput:
        """Every chunk writes, then every chunk reads, as a layer of the engine does."""
        written = set()
        for chunk in output.chunks:
            text = self.texts[chunk.request_id]
            start, end = chunk.num_computed_tokens, chunk.num_computed_tokens + chunk.num_new_tokens
            assert end > start, "logits of a token that is not computed"
            assert tuple(chunk.token_ids) == text[1 + start : 1 + end]
            assert chunk.samples == (end == len(text) - 1)
            for position in range(start, end):
                slot = self.slot(chunk.block_ids, position)
                assert slot not in written, "two tokens in one slot"
                written.add(slot)
                self.slots[slot] = text[: position + 2]
        self.num_computed_tokens += len(written)
        assert len(written) == output.num_new_tokens
        tokens = {}
        for chunk in output.chunks:
            text = self.texts[chunk.request_id]
            for position in range(chunk.num_computed_tokens + chunk.num_new_tokens):
                slot = self.slot(chunk.block_ids, position)
                assert self.slots[slot] == text[: position + 2], "someone else's context"
            if chunk.samples:
                token_id = next_token(text)
                self.texts[chunk.request_id] = (*text, token_id)
                tokens[chunk.request_id] = (SampledToken(token_id=token_id),)
        return ModelOutput(tokens=tokens)

    def slot(self, block_ids: Sequence[int], position: int) -> tuple[int, int]:
        return block_ids[position // self.block_size], position % self.block_size


class Listener:
    """Applies events; what it holds must be what the cache holds."""

    def __init__(self) -> None:
        self.parent_of: dict[bytes, bytes | None] = {}

    def apply(self, events: Sequence[KVCacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored(block_hashes=names, parent_block_hash=parent):
                    for name in names:
                        assert name not in self.parent_of, "stored twice"
                        assert parent is None or parent in self.parent_of, "no parent"
                        self.parent_of[name] = parent
                        parent = name
                case BlockRemoved(block_hashes=names):
                    for name in names:
                        assert name not in self.parent_of.values(), "an orphan is left"
                        del self.parent_of[name]
                case AllBlocksCleared():
                    self.parent_of.clear()


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_scheduler(
    *,
    num_blocks: int = 16,
    prefix_cache: str = "hash",
    prefix_caching: bool = True,
    max_model_len: int = 64,
    eos_token_ids: frozenset[int] = frozenset(),
    has_chunks: bool = True,
    **settings: object,
) -> Scheduler:
    kv = KVCacheConfig(
        block_size=BLOCK_SIZE,
        prefix_cache=prefix_cache,  # type: ignore[arg-type]
        prefix_caching=prefix_caching,
    )
    return Scheduler(
        SchedulerConfig(**settings),  # type: ignore[arg-type]
        kv_cache=KVCacheManager(kv, num_blocks=num_blocks, namespace=NAMESPACE),
        clock=Clock(),
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids,
        has_chunks=has_chunks,
    )


def make_request(
    name: str,
    token_ids: Sequence[int],
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    **sampling: object,
) -> Request:
    return Request(
        request_id=RequestId(name),
        prompt_token_ids=token_ids,
        priority=priority,
        cache_salt=cache_salt,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
    )


class Rig:
    """A scheduler on the oracle, one step at a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.oracle = KVOracle(scheduler.kv_cache.block_size)
        self.listener = Listener()
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.finished: list[str] = []
        self.last: SchedulerOutput | None = None

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.oracle.add(request)
        self.outputs[request.request_id] = []

    def step(self) -> dict[str, int]:
        """Run a step; how many tokens it computed for whom, in order."""
        self.last = self.scheduler.schedule()
        if self.last is None:
            return {}
        result = self.oracle.execute(self.last)
        for output in self.scheduler.update(self.last, result):
            self.outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                self.finished.append(output.request_id)
        self.listener.apply(self.scheduler.kv_cache.take_events())
        return {chunk.request_id: chunk.num_new_tokens for chunk in self.last.chunks}

    def run(self, *, max_steps: int = 2000) -> list[dict[str, int]]:
        """Step until nothing is left to do."""
        steps = []
        while self.scheduler.has_work:
            steps.append(self.step())
            assert steps[-1], "work, and nothing runs"
            assert len(steps) <= max_steps, "no end"
        return steps

    def generated(self, name: str) -> list[int]:
        return [token.token_id for output in self.outputs[name] for token in output.tokens]


def runs(cache: PrefixCache) -> list[Run]:
    """All runs of a cache, with its root."""
    if isinstance(cache, HashPrefixCache):
        return [cache.root, *cache._runs.values()]
    found = [cache.root]
    for run in found:
        found += run.children.values()
    return found


def children(cache: PrefixCache, parent: Run) -> list[Run]:
    return [run for run in runs(cache) if run.parent is parent]


def cached_names(cache: PrefixCache) -> dict[int, BlockHash]:
    """The name of each cached block, by its number."""
    return {
        block_id: name
        for run in runs(cache)
        for block_id, name in zip(run.block_ids, run.names, strict=True)
    }


def check_decodes(scheduler: Scheduler) -> None:
    """What is kept of the decodes together is what going over them would find."""
    decodes, running = scheduler._decodes, scheduler._running
    members = [state for state in running if state in decodes.members]
    assert set(running) == {*decodes.members, *decodes.begun}
    assert len(running) == len(decodes.members) + len(decodes.begun)
    assert all(state.is_decode for state in members)
    assert decodes.num_context_tokens == sum(state.num_computed_tokens for state in members)
    lefts = [state.num_certain_tokens - state.num_tokens for state in members]
    assert not lefts or decodes.num_left() == max(1, min(lefts))
    size = scheduler.kv_cache.block_size
    full = [s for s in members if s.num_tokens > len(s.sequence.block_ids) * size]
    assert full == [state for state in decodes.edge if state.is_running]


def check_consistency(scheduler: Scheduler, listener: Listener) -> None:
    """References match holders, free blocks are queued once, what is cached was told."""
    kv_cache = scheduler.kv_cache
    pool = kv_cache._pool
    name_of = cached_names(pool.cache)
    num_ends = Counter([pool.cache.root])  # which nobody has to hold
    used = set()
    for state in scheduler._states.values():
        sequence, num_cached = state.sequence, state.sequence.num_cached_blocks
        assert state.is_running == (state in scheduler._running) == bool(sequence.block_ids)
        assert state.is_running or state.num_computed_tokens == 0
        names = [name_of.get(block_id) for block_id in sequence.block_ids]
        assert names[:num_cached] == list(sequence.block_hashes[:num_cached])
        assert not any(names[num_cached:])
        assert used.isdisjoint(sequence.block_ids[num_cached:]), "shared without a name"
        used.update(sequence.block_ids)
        if sequence.run is not None:
            num_ends[sequence.run] += 1
    for run in runs(pool.cache):
        num_held_children = sum(child.num_holders > 0 for child in children(pool.cache, run))
        assert run.num_holders == num_ends[run] + num_held_children
    queued = list(pool.free_block_ids())
    assert sorted(queued) == sorted(set(range(kv_cache.num_total_blocks)) - used)
    assert kv_cache.num_used_blocks == len(used)
    cached = list(name_of.values())
    assert len(cached) == len(set(cached)) == kv_cache.num_cached_blocks
    assert set(cached) == set(listener.parent_of)
    assert [s.rank for s in scheduler._running] == sorted(s.rank for s in scheduler._running)
    check_decodes(scheduler)
    load = scheduler.load()
    assert load.num_running + load.num_waiting == len(scheduler._states)
    waiting = [s for s in scheduler._states.values() if not s.is_running]
    prefills = [s for s in scheduler._running if not s.is_decode]
    assert load.num_waiting_prefill_tokens == sum(s.num_tokens for s in waiting) + sum(
        s.num_tokens - s.num_computed_tokens for s in prefills
    )
