"""The beginnings that many prompts share, as a tree of tokens.

Who has a conversation's stem need not look at what is in it again: its blocks are named once,
each stem's after its parent's.
"""

from expediter.routing.chains import BYTES_PER_TOKEN, BlockKey, Chain

MAX_NAMINGS = 4
"""Ways to name a stem's blocks that are remembered: block sizes, adapters, tenants' salts."""

_Naming = tuple[int, BlockKey, bytes]


class Stem:
    """The packed tokens of `parent` and then `data`; `name` is what its owner calls it."""

    __slots__ = ("_named", "data", "name", "num_bytes", "parent")

    def __init__(self, data: bytes, parent: "Stem | None" = None, *, name: bytes = b"") -> None:
        self.data = data
        self.name = name
        self.parent = parent
        self.num_bytes: int = len(data) + (parent.num_bytes if parent is not None else 0)
        # Its own keys, the tokens after the last full block.
        self._named: dict[_Naming, tuple[list[BlockKey], bytes]] = {}

    @property
    def whole(self) -> bytes:
        """All its tokens."""
        return b"".join([stem.data for stem in reversed(self.path())])

    def path(self) -> list["Stem"]:
        """The stem, its parent, and so on."""
        path: list[Stem] = []
        stem: Stem | None = self
        while stem is not None:
            path.append(stem)
            stem = stem.parent
        return path

    def keys(
        self, block_size: int, seed: BlockKey, first_extra: bytes, chain: Chain
    ) -> tuple[list[BlockKey], bytes]:
        """The keys of the full blocks, and the tokens after those."""
        naming, rest = (block_size, seed, first_extra), b""
        keys: list[BlockKey] = []
        for stem in reversed(self.path()):
            named = stem._named.get(naming)
            if named is None:
                parent = keys[-1] if keys else seed
                extras = () if keys or not first_extra else (first_extra,)
                named = stem._name(naming, rest + stem.data, parent, extras, chain)
            keys += named[0]
            rest = named[1]
        return keys, rest

    def _name(
        self,
        naming: _Naming,
        data: bytes,
        parent: BlockKey,
        extras: tuple[bytes, ...],
        chain: Chain,
    ) -> tuple[list[BlockKey], bytes]:
        num_bytes = naming[0] * BYTES_PER_TOKEN
        ends = range(num_bytes, len(data) + 1, num_bytes)
        own = chain(data, ends=ends, parent=parent, extras=extras)
        named = own, data[len(own) * num_bytes :]
        if len(self._named) >= MAX_NAMINGS:
            self._named.clear()
        self._named[naming] = named
        return named
