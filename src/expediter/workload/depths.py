"""How many blocks were used since each one's last use.

Every use takes the next place in a row. A Fenwick tree counts the places that are still some
block's last; those behind a block's own are the blocks used since. When most places are no
longer anybody's, the row is packed.
"""

from collections.abc import Iterator, Sequence


class Depths:
    """An LRU stack that can be asked for depths without being walked."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}  # from 1, in rising order
        self._tree = [0]  # of the places: 1 where a block's last use is, else 0

    @property
    def num_blocks(self) -> int:
        """How many different blocks have been used."""
        return len(self._places)

    def of_prefix(self, names: Sequence[bytes]) -> Iterator[int]:
        """The depths of the first names, up to one never used; the block used last has depth 1."""
        places = self._places
        for name in names:
            place = places.get(name)
            if place is None:
                return
            yield len(places) - self._count_before(place)

    def use(self, names: Sequence[bytes]) -> None:
        """The last of them is used first."""
        for name in reversed(names):
            place = self._places.pop(name, None)
            if place is not None:
                self._remove(place)
            self._append()
            self._places[name] = len(self._tree) - 1
        if len(self._tree) > 4 * len(self._places) + 1024:
            self._pack()

    def _count_before(self, place: int) -> int:
        tree = self._tree
        count = 0
        place -= 1
        while place:
            count += tree[place]
            place &= place - 1
        return count

    def _remove(self, place: int) -> None:
        tree = self._tree
        while place < len(tree):
            tree[place] -= 1
            place += place & -place

    def _append(self) -> None:
        """One more place, which counts; its node covers those below it."""
        tree = self._tree
        place = len(tree)
        covered = place - (place & -place)
        count = 1
        below = place - 1
        while below > covered:
            count += tree[below]
            below &= below - 1
        tree.append(count)

    def _pack(self) -> None:
        self._places = {name: place for place, name in enumerate(self._places, start=1)}
        self._tree = [place & -place for place in range(len(self._places) + 1)]
