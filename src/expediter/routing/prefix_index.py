"""Who holds which prefix.

Each key maps to the set of workers that hold its block, as the bits of one integer. An engine
evicts a prefix's tail before its head, so a worker that holds a block holds all before it;
the longest match is then found by bisection, for all workers at once: halve the prompt, split
the workers into those that hold the middle block and those that do not, and go on in both.
A hole in a worker's chain costs a wrong prediction, nothing else.

Two sources, kept apart: what workers' events say they hold, and what is assumed from
placements (some blocks only: `marks.py`). For a worker with events an assumption only bridges the
time until they arrive.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from expediter.clock import Clock
from expediter.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from expediter.load import WorkerId
from expediter.routing.assumed import RECENT_SHARE, AssumedPrompts
from expediter.routing.chain_memo import ChainMemo
from expediter.routing.chains import BlockKey
from expediter.routing.holders import Holders, longest, set_all, unset_all
from expediter.routing.named_blocks import NamedBlocks
from expediter.routing.prompt import Prompt, token_seed
from expediter.routing.stored_keys import stored_keys


@dataclass(slots=True)
class _Table:
    """The blocks of one size: for each key, the workers that hold it as a bit mask."""

    held: Holders = field(default_factory=dict)
    assumed: Holders = field(default_factory=dict)


@dataclass(slots=True)
class _Worker:
    """`key_of` translates the engine's own block hashes; only what is held is in it."""

    worker_id: WorkerId  # whose matches these are; several caches may serve one worker
    bit: int
    block_size: int
    table: _Table
    assumed: AssumedPrompts
    named: NamedBlocks
    key_of: dict[bytes, BlockKey] = field(default_factory=dict)


class PrefixIndex:
    """Matches a prompt against every worker's cache. All changes come through its methods."""

    def __init__(self, *, clock: Clock, block_size: int, assumed_capacity: int) -> None:
        """`block_size` holds until a worker's events say otherwise."""
        self._clock = clock
        self._block_size = block_size
        self._assumed_capacity = assumed_capacity
        self._tables: dict[int, _Table] = {}
        self._workers: dict[WorkerId, _Worker] = {}
        self._slots: list[_Worker | None] = []
        self._chain = ChainMemo().chain
        self.num_unknown_parents = 0

    def add_worker(self, worker_id: WorkerId, *, part_of: WorkerId | None = None) -> None:
        """Make room for a worker, with nothing cached; adding one again changes nothing.

        A data-parallel rank has a cache of its own and is `part_of` a worker: the worker's
        match is the best of its parts.
        """
        if worker_id in self._workers:
            return
        slot = next((i for i, taken in enumerate(self._slots) if taken is None), len(self._slots))
        table, bit = self._table(self._block_size), 1 << slot
        assumed = self._assumed(table.assumed, bit, self._block_size)
        owner, size, named = part_of or worker_id, self._block_size, NamedBlocks(bit)
        worker = _Worker(owner, bit, size, table, assumed, named)
        self._workers[worker_id] = worker
        self._slots[slot : slot + 1] = [worker]

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forget a worker and all it holds."""
        self.clear(worker_id)
        worker = self._workers.pop(worker_id)
        self._slots[self._slots.index(worker)] = None

    def clear(self, worker_id: WorkerId) -> None:
        """The worker holds nothing any more, or nothing that is known."""
        self._clear(self._workers[worker_id])

    def apply(self, worker_id: WorkerId, event: KVCacheEvent) -> None:
        """Take in one event of a worker's cache; events must come in order."""
        worker = self._workers[worker_id]
        match event:
            case BlockStored():
                self._store(worker, event)
            case BlockRemoved(block_hashes=block_hashes):
                _remove(worker, block_hashes)
            case AllBlocksCleared():
                self._clear(worker)

    def assume(self, worker_id: WorkerId, prompt: Prompt, *, seconds: float) -> None:
        """Take the prompt to be in the worker's cache for some time, unless events say it is."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        now = self._clock()
        worker.assumed.expire(now)
        held = worker.table.held
        if held and not prompt.is_text:
            keys = prompt.known_keys(worker.block_size, chain=self._chain)
            if keys and held.get(keys[-1], 0) & worker.bit:
                return
        marks = prompt.marks(worker.block_size, chain=self._chain)
        worker.assumed.of(prompt).put(
            marks,
            sizes=prompt.grid(worker.block_size).sizes(len(marks)),
            expires_at=now + seconds,
            slack=seconds / RECENT_SHARE,
        )

    def expire(self) -> None:
        """Drop assumptions that are too old."""
        now = self._clock()
        for worker in self._workers.values():
            worker.assumed.expire(now)

    def match(self, prompt: Prompt) -> dict[WorkerId, int]:
        """How many of the prompt's first tokens each worker holds; those with none are left out.

        An engine computes at least the last token, so a whole prompt never matches.
        """
        matched: dict[WorkerId, int] = {}
        num_usable = max(0, prompt.num_tokens - 1)
        for block_size, table in self._tables.items():
            if table.held and not prompt.is_text:
                keys = prompt.known_keys(block_size, chain=self._chain)
                num = min(len(keys), num_usable // block_size)
                for mask, num_keys in longest(table.held, keys, num):
                    self._note(matched, mask, num_keys * block_size)
            if table.assumed:
                marks, grid = prompt.marks(block_size, chain=self._chain), prompt.grid(block_size)
                num = min(len(marks), grid.num(num_usable))
                for mask, num_marks in longest(table.assumed, marks, num):
                    self._note(matched, mask, grid.end(num_marks))
        return matched

    def name(self, prompt: Prompt) -> None:
        """Compute the keys that matching it takes; may be called from any thread."""
        for block_size, table in list(self._tables.items()):
            if table.held or table.assumed:
                prompt.marks(block_size, chain=self._chain)

    def num_blocks(self, worker_id: WorkerId) -> int:
        """How many blocks the worker's events say it holds."""
        return len(self._workers[worker_id].key_of) + len(self._workers[worker_id].named)

    def num_assumed_blocks(self, worker_id: WorkerId) -> int:
        """How many blocks it is assumed to hold."""
        worker = self._workers[worker_id]
        return worker.assumed.num_tokens // worker.block_size

    def num_assumed_keys(self, worker_id: WorkerId) -> int:
        """How many keys stand for those (`marks.py`)."""
        return self._workers[worker_id].assumed.num_keys

    def _store(self, worker: _Worker, event: BlockStored) -> None:
        if event.block_size != worker.block_size and not self._resize(worker, event.block_size):
            return
        if not event.token_ids:
            self.num_unknown_parents += not worker.named.store(worker.table.held, event)
            return
        before = event.parent_block_hash
        parent = token_seed(event.lora_name) if before is None else worker.key_of.get(before)
        if parent is None:
            self.num_unknown_parents += 1
            return
        keys = stored_keys(event, parent)
        worker.key_of.update(zip(event.block_hashes, keys, strict=False))
        held, bit = worker.table.held, worker.bit
        for key in keys:
            mask = held.setdefault(key, bit)
            if not mask & bit:
                held[key] = mask | bit

    def _clear(self, worker: _Worker) -> None:
        unset_all(worker.table.held, worker.key_of.values(), worker.bit)
        worker.key_of.clear()
        worker.named.clear(worker.table.held)
        worker.assumed.clear()

    def _resize(self, worker: _Worker, block_size: int) -> bool:
        """Follow the worker to another block size; False for a block that is not a full one."""
        if (worker.key_of or worker.named) and block_size < worker.block_size:
            return False
        self._clear(worker)
        worker.block_size = block_size
        worker.table = self._table(block_size)
        worker.assumed = self._assumed(worker.table.assumed, worker.bit, block_size)
        return True

    def _table(self, block_size: int) -> _Table:
        return self._tables.setdefault(block_size, _Table())

    def _assumed(self, table: Holders, bit: int, block_size: int) -> AssumedPrompts:
        return AssumedPrompts(
            capacity=self._assumed_capacity * block_size,
            added=lambda keys: set_all(table, keys, bit),
            dropped=lambda keys: unset_all(table, keys, bit),
        )

    def _note(self, matched: dict[WorkerId, int], mask: int, num_tokens: int) -> None:
        """Raise the matches of the workers in the mask to this."""
        while mask:
            lowest = mask & -mask
            mask ^= lowest
            worker = self._slots[lowest.bit_length() - 1]
            assert worker is not None
            owner = worker.worker_id
            if num_tokens > matched.get(owner, 0):
                matched[owner] = num_tokens


def _remove(worker: _Worker, block_hashes: Iterable[bytes]) -> None:
    key_of, held = worker.key_of, worker.table.held
    gone = worker.named.remove(held, block_hashes) if worker.named else []
    if key_of:
        known = [key_of.pop(name) for name in block_hashes if name in key_of]
        unset_all(held, known, worker.bit)
        gone += known
    if worker.assumed:
        for key in gone:
            worker.assumed.discard(key)
