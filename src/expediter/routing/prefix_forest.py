"""Preble's global prefix forest: what requests share, who caches it, who asked for it lately.

A radix forest over block keys. A node is a run of blocks that, so far, always came together; a
prompt that parts from a run splits it, and a run whose one continuation has the same history is
joined with it again. Each worker's `Share` of a node counts the requests of the time window that
passed through it there, those of them not answered yet, and the node's first blocks cached there.
A node without shares is gone (paper, section 3.2).

Keys are chained, so runs are compared by bisection. Shares nest: what is counted, pending or
cached at a node is so at its ancestors too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from expediter.load import WorkerId
from expediter.routing.prompt import BlockKey

if TYPE_CHECKING:
    from expediter.routing.hot_prefixes import Waits


class Share:
    """One worker's part in a node; a link in that worker's list of what it used last."""

    __slots__ = ("newer", "node", "num_cached", "num_pending", "num_requests", "older")

    def __init__(self, node: "Node | None") -> None:
        self.node = node
        self.num_requests = 0  # in the window
        self.num_pending = 0  # placed, and no token yet
        self.num_cached = 0  # blocks of the run, from its first
        self.older: Share | None = None
        self.newer: Share | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing is left to say."""
        return not (self.num_requests or self.num_pending or self.num_cached)

    def link_after(self, other: "Share") -> None:
        """Take the place next to `other`, as used a moment later."""
        after = other.newer
        assert after is not None
        self.older, self.newer = other, after
        other.newer = after.older = self

    def unlink(self) -> None:
        """Leave the list; harmless outside one."""
        if self.older is not None and self.newer is not None:
            self.older.newer, self.newer.older = self.newer, self.older
            self.older = self.newer = None

    def split(self, upper: "Share", num_blocks: int) -> None:
        """Leave what concerns the run's first blocks to `upper`, used a moment later."""
        upper.num_requests, upper.num_pending = self.num_requests, self.num_pending
        if self.num_cached:
            upper.num_cached = min(self.num_cached, num_blocks)
            upper.link_after(self)
            self.num_cached -= upper.num_cached
            if not self.num_cached:
                self.unlink()

    def join(self, upper: "Share") -> None:
        """The inverse: take over what `upper` has cached; the rest is the same."""
        if upper.num_cached:
            if not self.num_cached:
                self.link_after(upper)
            self.num_cached += upper.num_cached
            upper.unlink()


@dataclass(slots=True, eq=False)
class Node:
    """A run of blocks. `start` blocks come before it; `prefill_ns` is its window's prefill work.

    `home` is the worker that a split gave this subtree to, and `is_hot` asks for one more copy.
    """

    keys: list[BlockKey]
    start: int
    parent: "Node | None"
    children: "dict[BlockKey, Node]" = field(default_factory=dict)
    shares: dict[WorkerId, Share] = field(default_factory=dict)
    prefill_ns: int = 0
    home: WorkerId | None = None
    is_hot: bool = False
    waits: "Waits | None" = None

    @property
    def end(self) -> int:
        """The number of blocks from a prompt's first to this run's last."""
        return self.start + len(self.keys)

    @property
    def num_requests(self) -> int:
        """Requests of the window that passed through, on all workers."""
        return sum(share.num_requests for share in self.shares.values())

    def share(self, worker_id: WorkerId) -> Share:
        """The worker's share, made if there is none."""
        share = self.shares.get(worker_id)
        if share is None:
            share = self.shares[worker_id] = Share(self)
        return share

    def to_root(self) -> "Iterator[Node]":
        """This node and its ancestors, upwards."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(slots=True)
class Match:
    """The nodes that a prompt passes; only the last may be matched in part."""

    path: list[Node]
    num_blocks: int


class PrefixForest:
    """Knows the runs and how they hang together; workers' memory is `WorkerCache`'s affair."""

    def __init__(self) -> None:
        # Every node by its first key. A key names all before it too, so no level is needed.
        self._heads: dict[BlockKey, Node] = {}
        self.num_blocks = 0

    def __iter__(self) -> Iterator[Node]:
        return iter(self._heads.values())

    def starting_with(self, key: BlockKey) -> Node | None:
        """The node whose first block this is, if there is one."""
        return self._heads.get(key)

    def match(self, keys: list[BlockKey]) -> Match:
        """The longest known prefix; changes nothing."""
        path: list[Node] = []
        position = 0
        while position < len(keys):
            node = self._heads.get(keys[position])
            if node is None:
                break
            path.append(node)
            num_common = _num_common(node.keys, keys, position)
            position += num_common
            if num_common < len(node.keys):
                break
        return Match(path, position)

    def insert(self, match: Match, keys: list[BlockKey]) -> list[Node]:
        """The path of exactly these keys, made from their match as it stands now.

        A new node has no share yet, and must get one.
        """
        path = list(match.path)
        if path and match.num_blocks < path[-1].end:
            path[-1] = self._split(path[-1], match.num_blocks - path[-1].start)
        if match.num_blocks < len(keys):
            leaf = Node(keys[match.num_blocks :], match.num_blocks, path[-1] if path else None)
            self._attach(leaf)
            self.num_blocks += len(leaf.keys)
            path.append(leaf)
        return path

    def tidy(self, node: Node) -> None:
        """Drop what of the node and its ancestors nobody uses; join runs that can be.

        A node that is gone already is left alone.
        """
        if self._heads.get(node.keys[0]) is not node:
            return
        current: Node | None = node
        while current is not None:
            parent = current.parent
            if not current.shares:
                if current.children:
                    return  # as unused as it is; the last of them to go takes it along
                self._drop(current)
            elif not current.children:
                self._trim(current)
            elif len(current.children) == 1:
                self._join(current)
            current = parent

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Cut a run after some blocks; returns its upper part. The lower part stays `node`."""
        upper = Node(node.keys[:num_blocks], node.start, node.parent)
        self._attach(upper)
        node.keys, node.start, node.parent = node.keys[num_blocks:], upper.end, upper
        self._attach(node)
        upper.prefill_ns = node.prefill_ns
        upper.home, node.home = node.home, None
        upper.is_hot, node.is_hot = node.is_hot, False
        if node.waits is not None and num_blocks >= len(node.keys):
            node.waits.move(node, upper)
        for worker_id, lower in list(node.shares.items()):
            lower.split(upper.share(worker_id), num_blocks)
            if lower.is_empty:
                del node.shares[worker_id]
        if not node.shares:
            self._drop(node)
        return upper

    def _join(self, upper: Node) -> None:
        """Undo a split: give a run's blocks to its one child, if both have one history."""
        (node,) = upper.children.values()
        if not _have_one_history(upper, node):
            return
        del self._heads[node.keys[0]]
        node.keys, node.start, node.parent = upper.keys + node.keys, upper.start, upper.parent
        self._attach(node)
        node.home = upper.home if upper.home is not None else node.home
        node.is_hot = node.is_hot or upper.is_hot
        if upper.waits is not None and (node.waits is None or 2 * len(upper.keys) > len(node.keys)):
            upper.waits.move(upper, node)
        for worker_id, share in upper.shares.items():
            node.share(worker_id).join(share)

    def _trim(self, leaf: Node) -> None:
        """Cut off what no worker caches any more, unless a request of the window ends there."""
        shares = leaf.shares.values()
        num_cached = max(share.num_cached for share in shares)
        if num_cached < len(leaf.keys) and not any(share.num_requests for share in shares):
            self.num_blocks -= len(leaf.keys) - num_cached
            leaf.keys = leaf.keys[:num_cached]

    def _attach(self, node: Node) -> None:
        """Put a node in its place, which another may have had."""
        self._heads[node.keys[0]] = node
        if node.parent is not None:
            node.parent.children[node.keys[0]] = node

    def _drop(self, node: Node) -> None:
        del self._heads[node.keys[0]]
        if node.parent is not None:
            del node.parent.children[node.keys[0]]
        self.num_blocks -= len(node.keys)


def _num_common(run: list[BlockKey], keys: list[BlockKey], position: int) -> int:
    """How many keys from `position` on are the run's; the first is."""
    low, high = 1, min(len(run), len(keys) - position)
    if run[high - 1] == keys[position + high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if run[middle - 1] == keys[position + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _have_one_history(upper: Node, lower: Node) -> bool:
    """No request ends between the two: every one that passed the upper passed the lower."""
    for worker_id, share in upper.shares.items():
        below = lower.shares.get(worker_id)
        num_below = (below.num_requests, below.num_pending) if below is not None else (0, 0)
        if num_below != (share.num_requests, share.num_pending):
            return False
    return True
