"""More copies of a prefix that one worker cannot serve alone.

Autoscaling (Preble, section 3.2): when the requests of a prefix wait twice as long on average as
half a window ago, one more worker gets a copy, and the subtrees below the prefix are split
between the two by their load. The test belongs to a request's key portion: the deepest run with
more tokens than all before it. Waiting is the time to the first token beyond PT(missed); the
halves of the window are counted one after the other, not sliding. A doubling from nothing to
little says nothing, so each half needs a few requests, and a copy must cost less than the wait.

Replication: a prefix that takes the share s of all requests keeps s * N of N workers busy,
however evenly it is spread, so it is wanted on floor(s * N) of them; a system prompt that
everybody uses is wanted on all. Only a request that shares nothing beyond the prefix makes a
copy: a conversation is not torn from its history for it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from expediter.load import WorkerId
from expediter.routing.prefix_forest import Node

MIN_SAMPLES = 4
"""Requests in each half of the window before their mean is believed."""

GROWTH = 2.0
"""The average queueing time doubles: the paper's test."""


@dataclass(slots=True, eq=False)
class Waits:
    """How long a node's requests waited, in this half of the window and in the one before."""

    node: Node
    half: int = 0
    num_now: int = 0
    seconds_now: float = 0.0
    num_before: int = 0
    seconds_before: float = 0.0

    def add(self, half: int, seconds: float) -> None:
        """Count a wait in the half window with this number."""
        if half != self.half:
            self.rebase()
            if half != self.half + 1:
                self.rebase()
            self.half = half
        self.num_now += 1
        self.seconds_now += seconds

    def rebase(self) -> None:
        """What is now becomes what was before."""
        self.num_before, self.seconds_before = self.num_now, self.seconds_now
        self.num_now, self.seconds_now = 0, 0.0

    def have_grown(self, *, at_least: float) -> bool:
        """The mean has doubled since the half before, to `at_least` so many seconds."""
        if min(self.num_now, self.num_before) < MIN_SAMPLES:
            return False
        now, before = self.seconds_now / self.num_now, self.seconds_before / self.num_before
        return now >= GROWTH * before and now > at_least

    def move(self, old: Node, new: Node) -> None:
        """Belong to another node; `old` has none any more."""
        old.waits, new.waits, self.node = None, self, new


def waits_of(path: Sequence[Node]) -> Waits | None:
    """Those of the path's key portion: the deepest run longer than all before it."""
    for node in reversed(path):
        if len(node.keys) > node.start:
            if node.waits is None:
                node.waits = Waits(node)
            return node.waits
    return None


def copy_if_hot(
    path: Sequence[Node], loads: Mapping[WorkerId, float], *, decode_seconds: float
) -> WorkerId | None:
    """Carry out a copy that a hot node on the path waits for; returns who is to hold it.

    Some of its subtrees get a home there. None if nothing waits, or all workers hold it.
    """
    hot = next((node for node in path if node.is_hot), None)
    if hot is None:
        return None
    hot.is_hot = False
    holders = {w for w, share in hot.shares.items() if share.num_cached or share.num_pending}
    others = [worker_id for worker_id in loads if worker_id not in holders]
    owners = [worker_id for worker_id in loads if worker_id in holders]
    if not others or not owners:
        return None
    owner = max(owners, key=lambda worker_id: hot.shares[worker_id].num_requests)
    target = min(others, key=lambda worker_id: loads[worker_id])
    split_subtrees(hot, owner, target, decode_seconds=decode_seconds)
    return target


def split_subtrees(node: Node, owner: WorkerId, target: WorkerId, *, decode_seconds: float) -> None:
    """Share out what continues the node: heaviest first, each to the one with less so far.

    A subtree weighs its part of L, with a request's decoding taken at the mean; what nobody asked
    for within the window is left out. A run with one continuation is passed over: there is
    nothing to share out yet.
    """
    while len(node.children) == 1:
        (node,) = node.children.values()
    given = {owner: 0.0, target: 0.0}
    weights = {
        child: child.prefill_ns * 1e-9 + child.num_requests * decode_seconds
        for child in node.children.values()
        if child.num_requests
    }
    for child in sorted(weights, key=lambda child: weights[child], reverse=True):
        child.home = min(given, key=lambda worker_id: given[worker_id])
        given[child.home] += weights[child]


def home_of(path: Sequence[Node], loads: Mapping[WorkerId, float]) -> WorkerId | None:
    """The worker that the deepest subtree on the path was given to, if it is a candidate."""
    for node in reversed(path):
        if node.home is not None and node.home in loads:
            return node.home
    return None


def wanted_copies(node: Node, workers: Collection[WorkerId], *, num_requests: int) -> int:
    """On how many of the workers a prefix should lie; `num_requests` are all that they had."""
    through = sum(node.shares[w].num_requests for w in workers if w in node.shares)
    return len(workers) * through // num_requests if through >= MIN_SAMPLES else 1
