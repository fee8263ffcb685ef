"""Which beginnings the last prompts share, as a tree.

A block's key names everything before it, so prompts that begin alike have the same keys up to
where they part. Of each prompt a few keys are kept, at fixed distances: every 64 tokens at first,
then every 512. Counting them makes the tree, and that is done only when somebody looks. What was
said cannot be told from it: a prefix has a name and a length here, no words.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from expediter.routing.prompt import BlockKey, Prompt

FINE_TOKENS, NUM_FINE = 64, 16
COARSE_TOKENS, NUM_COARSE = 512, 32
CAPACITY = 256
MAX_PREFIXES = 14
NAME_DIGITS = 8

_NUM_SKIPPED = FINE_TOKENS * NUM_FINE // COARSE_TOKENS  # coarse ones, where fine ones are


class HotPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A beginning that several prompts have. `parent` is the longest shorter one, if any."""

    key: BlockKey
    parent: BlockKey | None
    num_tokens: int
    num_requests: int
    last_used_at: float


class Seen(msgspec.Struct, frozen=True):
    """One prompt: the keys that name its first tokens, and how many tokens each one names."""

    at: float
    keys: Sequence[BlockKey]
    lengths: Sequence[int]


@dataclass(slots=True, eq=False)
class _Node:
    key: BlockKey
    num_tokens: int
    num_requests: int = 0
    last_used_at: float = 0.0
    children: dict[BlockKey, "_Node"] = field(default_factory=dict)


class HotPrefixes:
    """The beginnings of the last `CAPACITY` prompts."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=CAPACITY)

    def add(self, prompt: Prompt, *, at: float) -> None:
        """A prompt was placed; one whose blocks do not end at these distances is left out."""
        fine = prompt.named_every(FINE_TOKENS)
        if 0 < len(fine) < NUM_FINE:
            self._seen.append(Seen(at, fine, _MIXED_LENGTHS))
            return
        coarse = prompt.named_every(COARSE_TOKENS)
        if fine:
            keys = fine[:NUM_FINE] + coarse[_NUM_SKIPPED : _NUM_SKIPPED + NUM_COARSE]
            self._seen.append(Seen(at, keys, _MIXED_LENGTHS))
        elif coarse:
            self._seen.append(Seen(at, coarse[:NUM_COARSE], _COARSE_LENGTHS))

    def tree(self) -> list[HotPrefix]:
        """The beginnings that most requests share, parents before their children."""
        counts = Counter(key for seen in self._seen for key in seen.keys)
        root = _Node(BlockKey(b""), 0)
        for seen in self._seen:
            node = root
            for key, num_tokens in zip(seen.keys, seen.lengths, strict=False):
                if counts[key] < 2:
                    break  # nobody else goes on like this
                child = node.children.get(key)
                if child is None:
                    child = node.children[key] = _Node(key, num_tokens)
                child.num_requests += 1
                child.last_used_at = max(child.last_used_at, seen.at)
                node = child
        return _hottest(root)


def _hottest(root: _Node) -> list[HotPrefix]:
    """The nodes where prompts part; a parent has as many requests as its children, or more."""
    found: list[HotPrefix] = []
    todo: list[tuple[_Node, BlockKey | None]] = [(node, None) for node in root.children.values()]
    while todo and len(found) < MAX_PREFIXES:
        todo.sort(key=lambda each: (each[0].num_requests, each[0].last_used_at))
        node, parent = todo.pop()
        while len(node.children) == 1:
            (only,) = node.children.values()
            if only.num_requests < node.num_requests:
                break
            node = only
        found.append(
            HotPrefix(
                key=node.key,
                parent=parent,
                num_tokens=node.num_tokens,
                num_requests=node.num_requests,
                last_used_at=node.last_used_at,
            )
        )
        todo += [(child, node.key) for child in node.children.values()]
    return found


def name_of(key: BlockKey) -> str:
    """A short name to show."""
    return key.hex()[:NAME_DIGITS]


_FINE_LENGTHS = [FINE_TOKENS * (place + 1) for place in range(NUM_FINE)]
_COARSE_LENGTHS = [COARSE_TOKENS * (place + 1) for place in range(NUM_COARSE)]
_MIXED_LENGTHS = _FINE_LENGTHS + [
    COARSE_TOKENS * (_NUM_SKIPPED + 1 + place) for place in range(NUM_COARSE)
]
