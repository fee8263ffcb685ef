"""A cache that is really there."""

from collections import OrderedDict
from collections.abc import Sequence


class LRU:
    """Keeps the `size` blocks used last; a prompt's first block counts as used last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def num_hits(self, names: Sequence[bytes]) -> int:
        for number, name in enumerate(names):
            if name not in self._blocks:
                return number
        return len(names)

    def use(self, names: Sequence[bytes]) -> None:
        for name in reversed(names):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._size:
            self._blocks.popitem(last=False)
