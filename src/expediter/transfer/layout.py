"""Where a block's bytes lie in a pool, and which of them go where in another.

A pool's axes, outermost first: block, layer, key or value, KV head, slot, head element. One head
of one layer of one block is contiguous (a piece); so is all of a block, whatever the layers, and
so are neighbouring blocks. A worker that
splits the model over several processes has a pool in each, with some of the heads; pools of
differently split workers hold the same pieces, only grouped otherwise. So a copy between any two
pools is a list of strided slices, and nothing but arithmetic.
"""

from dataclasses import dataclass, fields

from expediter.errors import LayoutMismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class KVIdentity:
    """Whose KV it is: equal tokens have equal KV only if all of these are equal.

    `revision` is the checkpoint's fingerprint, `adapter` one merged into the weights, `rope` the
    settings of the rotary positions that the checkpoint does not fix.
    """

    model: str = ""
    revision: str = ""
    tokenizer: str = ""
    adapter: str = ""
    rope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """How one pool's bytes are arranged; enough for another process to find any block in it.

    `num_kv_heads` are those in this pool, of `num_total_kv_heads` (0: this times `tp_size`).
    Rank r of `tp_size` holds the r-th part of the heads; with more ranks than heads,
    neighbouring ranks hold the same one. Raises ValueError for a split that cannot be.
    """

    num_layers: int
    num_kv_heads: int
    num_blocks: int
    block_size: int
    head_size: int
    dtype: str
    element_bytes: int
    tp_size: int = 1
    tp_rank: int = 0
    num_total_kv_heads: int = 0
    identity: KVIdentity = KVIdentity()

    def __post_init__(self) -> None:
        sizes = (self.num_layers, self.num_kv_heads, self.num_blocks, self.block_size)
        if min(*sizes, self.head_size, self.element_bytes, self.tp_size) < 1:
            raise ValueError("every size in a KV layout is at least 1")
        if not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(f"tp_rank {self.tp_rank} is not in [0, {self.tp_size})")
        total, held = self.total_kv_heads, self.num_kv_heads
        is_split = held * self.tp_size == total
        is_replicated = held == 1 and self.tp_size % total == 0
        if not (is_split or is_replicated):
            raise ValueError(
                f"{total} KV heads over {self.tp_size} ranks do not make {held} a rank; one of "
                "heads and ranks must divide the other"
            )

    @property
    def total_kv_heads(self) -> int:
        """KV heads of the model."""
        return self.num_total_kv_heads or self.num_kv_heads * self.tp_size

    @property
    def heads(self) -> range:
        """Which of the model's heads this pool holds."""
        first = self.tp_rank * self.total_kv_heads // self.tp_size
        return range(first, first + self.num_kv_heads)

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        """Block, layer, key or value, KV head, slot, element."""
        return (
            self.num_blocks,
            self.num_layers,
            2,
            self.num_kv_heads,
            self.block_size,
            self.head_size,
        )

    @property
    def piece_bytes(self) -> int:
        """Bytes of one head's keys (or values) in one block of one layer: contiguous."""
        return self.block_size * self.head_size * self.element_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers and heads, keys and values."""
        return self.num_layers * 2 * self.num_kv_heads * self.piece_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.block_bytes

    def offset(self, *, layer: int, kv: int, head: int, block: int) -> int:
        """Where a piece starts, in bytes; `kv` is 0 for keys and 1 for values."""
        piece = ((block * self.num_layers + layer) * 2 + kv) * self.num_kv_heads + head
        return piece * self.piece_bytes


def check_compatible(source: KVLayout, target: KVLayout) -> None:
    """Raises LayoutMismatch, naming all that differs, unless one's KV means the same in the other.

    How the heads are split may differ, and how many blocks there are.
    """
    names = ("dtype", "element_bytes", "block_size", "num_layers", "head_size", "total_kv_heads")
    identity = tuple(field.name for field in fields(KVIdentity))
    differing = _differences(source, target, names)
    differing += _differences(source.identity, target.identity, identity)
    if differing:
        raise LayoutMismatch("the other worker's KV is not ours: " + "; ".join(differing))


def _differences(theirs: object, ours: object, names: tuple[str, ...]) -> list[str]:
    pairs = ((name, getattr(theirs, name), getattr(ours, name)) for name in names)
    return [f"{name} {a!r} there, {b!r} here" for name, a, b in pairs if a != b]
