"""How much of a workload a cache of any size would hold, in one pass.

An LRU cache of c blocks holds the c blocks used last. So it is enough to know of each use how
many blocks were used since the last one: its depth. The use is a hit in every cache that is at
least so large (Mattson and others, 1970). A prompt's blocks count as used from its last to its
first: then no block is ever evicted before those that continue it, and what is hit is a prefix.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from expediter.workload.depths import Depths
from expediter.workload.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """Prompt blocks and tokens that were asked for and that were there."""

    num_blocks: int
    num_hit_blocks: int
    num_tokens: int
    num_hit_tokens: int

    @property
    def blocks(self) -> float:
        """The share of blocks that were there."""
        return self.num_hit_blocks / max(1, self.num_blocks)

    @property
    def tokens(self) -> float:
        """The share of tokens that were there."""
        return self.num_hit_tokens / max(1, self.num_tokens)


@dataclass(slots=True, kw_only=True)
class HitCurve:
    """Hits by the size of the cache. `num_distinct_blocks` is the size that holds all."""

    num_blocks: int = 0
    num_tokens: int = 0
    num_distinct_blocks: int = 0
    _blocks: Counter[int] = field(default_factory=Counter)  # by depth
    _tokens: Counter[int] = field(default_factory=Counter)

    def add(self, *, depth: int, num_tokens: int) -> None:
        """Count a use that hits in caches of `depth` blocks or more."""
        self._blocks[depth] += 1
        self._tokens[depth] += num_tokens

    def at(self, capacity_blocks: int | None = None) -> HitRate:
        """The hits of a cache of that size; None is one without end."""
        size = self.num_distinct_blocks if capacity_blocks is None else capacity_blocks
        return HitRate(
            num_blocks=self.num_blocks,
            num_hit_blocks=_up_to(size, self._blocks),
            num_tokens=self.num_tokens,
            num_hit_tokens=_up_to(size, self._tokens),
        )


def hit_curve(
    turns: Iterable[Turn],
    *,
    block_size: int,
    with_answers: bool = True,
    with_partial_blocks: bool = False,
) -> HitCurve:
    """Prompts one after another through one LRU cache of every size at once.

    Answers are cached too unless `with_answers` is false. `with_partial_blocks` counts a
    prompt's last block even if it is not full, and hits it if the whole prompt is repeated.
    Closed loops come in order of their first turns: give them times first (`open_loop`).
    """
    curve = HitCurve()
    depths = Depths()
    for turn in turns:
        used = turn.prompt.block_hashes(block_size)
        sizes = [block_size] * len(used)
        rest = turn.num_prompt_tokens % block_size
        if rest and with_partial_blocks:
            used.append(turn.prompt.name)
            sizes.append(rest)
        curve.num_blocks += len(used)
        curve.num_tokens += turn.num_prompt_tokens
        _count_hits(curve, depths.of_prefix(used), sizes)
        depths.use(turn.transcript.block_hashes(block_size) if with_answers else used)
    curve.num_distinct_blocks = depths.num_blocks
    return curve


def hit_rate(
    turns: Iterable[Turn],
    capacity_blocks: int | None = None,
    *,
    block_size: int,
    with_answers: bool = True,
    with_partial_blocks: bool = False,
) -> HitRate:
    """The hits of one LRU cache of `capacity_blocks`; see `hit_curve`."""
    return hit_curve(
        turns,
        block_size=block_size,
        with_answers=with_answers,
        with_partial_blocks=with_partial_blocks,
    ).at(capacity_blocks)


def _count_hits(curve: HitCurve, depths: Iterable[int], sizes: Sequence[int]) -> None:
    for depth, size in zip(depths, sizes, strict=False):
        curve.add(depth=depth, num_tokens=size)


def _up_to(size: int, counts: Counter[int]) -> int:
    return sum(count for depth, count in counts.items() if depth <= size)
