"""What is taken to lie in one worker's KV memory, and what it would lose to a new prompt.

A model of the worker's own cache: least recently used first, tails before heads, parts of a run
when that is enough. Its list orders the worker's shares from the longest unused to the last
used. A prompt's head is always put in after its tail, so no run goes before its continuations.
"""

from collections.abc import Collection, Iterator

from expediter.load import WorkerId
from expediter.routing.prefix_forest import Node, PrefixForest, Share


class WorkerCache:
    """At most `capacity` blocks of the forest's nodes."""

    def __init__(self, worker_id: WorkerId, *, forest: PrefixForest, capacity: int) -> None:
        self._worker_id = worker_id
        self._forest = forest
        self.capacity = capacity
        self.num_blocks = 0
        # One ring through a share that is nobody's: its neighbours are the oldest and the newest.
        self._end = Share(None)
        self._end.older = self._end.newer = self._end

    def __iter__(self) -> Iterator[Share]:
        share = self._end.newer
        while share is not self._end:
            assert share is not None
            yield share
            share = share.newer

    @property
    def num_free(self) -> int:
        """How many more blocks fit before something must go."""
        return self.capacity - self.num_blocks

    def hold(self, path: list[Node]) -> None:
        """The worker computes this whole path, which fits, and has then used it last."""
        for node in reversed(path):
            share = node.share(self._worker_id)
            self.num_blocks += len(node.keys) - share.num_cached
            share.num_cached = len(node.keys)
            share.unlink()
            newest = self._end.older
            assert newest is not None
            share.link_after(newest)
        if self.num_blocks > self.capacity:
            self.evict(self.num_blocks - self.capacity)

    def victims(self, num_blocks: int, *, keep: Collection[Node]) -> list[tuple[Share, int]]:
        """What would go to make room for `num_blocks`: shares, and how many blocks of each.

        `keep` is in use by whoever needs the room. The last is taken only as far as needed.
        """
        found = []
        share = self._end.newer
        while num_blocks > 0 and share is not None and share is not self._end:
            if share.node not in keep:
                num_taken = min(share.num_cached, num_blocks)
                num_blocks -= num_taken
                found.append((share, num_taken))
            share = share.newer
        return found

    def evict(self, num_blocks: int) -> None:
        """Drop this many blocks, or all, longest unused first."""
        while num_blocks > 0 and self.num_blocks:
            share = self._end.newer
            assert share is not None
            assert share.node is not None
            num_taken = min(share.num_cached, num_blocks)
            num_blocks -= num_taken
            node = share.node
            self._take(share, num_taken)
            self._forest.tidy(node)

    def drop(self, node: Node) -> None:
        """Drop a run and all that continues it."""
        subtree = [node]
        for current in subtree:
            subtree.extend(c for c in current.children.values() if self._worker_id in c.shares)
        for current in subtree:
            share = current.shares.get(self._worker_id)
            if share is not None and share.num_cached:
                self._take(share, share.num_cached)
        for current in reversed(subtree):  # children first: a node with children stays
            self._forest.tidy(current)

    def _take(self, share: Share, num_blocks: int) -> None:
        share.num_cached -= num_blocks
        self.num_blocks -= num_blocks
        if share.num_cached == 0:
            share.unlink()
        if share.is_empty and share.node is not None:
            del share.node.shares[self._worker_id]
