"""Workers by block: each key maps to those that hold it, as the bits of one integer."""

from collections.abc import Callable, Iterable, Sequence

from expediter.routing.prompt import BlockKey

Holders = dict[BlockKey, int]
"""No key is there without a holder."""

MAX_BISECTED = 32
"""Different match lengths found by bisection; where there are more, going key by key is faster."""


def set_all(holders: Holders, keys: Sequence[BlockKey], bit: int) -> None:
    """This worker holds these blocks too."""
    get = holders.get
    holders.update([(key, get(key, 0) | bit) for key in keys])


def unset_all(holders: Holders, keys: Iterable[BlockKey], bit: int) -> None:
    """This worker does not hold these blocks any more."""
    others = ~bit
    for key in keys:
        mask = holders.pop(key, 0) & others
        if mask:
            holders[key] = mask


def longest(table: Holders, keys: list[BlockKey], num_usable: int) -> list[tuple[int, int]]:
    """Split the workers that hold the first key by how many keys they hold in a row."""
    if num_usable == 0:
        return []
    holders = table.get
    found: list[tuple[int, int]] = []
    todo = [(1, num_usable, holders(keys[0], 0))]
    while todo:
        low, high, mask = todo.pop()  # these workers hold `low` keys, and at most `high`
        if len(found) > MAX_BISECTED:
            found += _scan(holders, keys[low:high], low, mask)
            continue
        while low < high and mask:
            middle = (low + high + 1) // 2
            having = mask & holders(keys[middle - 1], 0)
            if having != mask:
                if having:
                    todo.append((middle, high, having))
                mask ^= having
                high = middle - 1
            else:
                low = middle
        if mask:
            found.append((mask, low))
    return found


def _scan(
    holders: Callable[[BlockKey, int], int], keys: list[BlockKey], num_held: int, mask: int
) -> list[tuple[int, int]]:
    """The same key by key, for workers that hold the `num_held` keys before these."""
    found = []
    for key in keys:
        having = mask & holders(key, 0)
        if having != mask:
            found.append((mask ^ having, num_held))
            mask = having
            if not mask:
                return found
        num_held += 1
    if mask:
        found.append((mask, num_held))
    return found
