"""Workers by block: each key maps to those that hold it, as the bits of one integer."""

from collections.abc import Iterable, Sequence

from expediter.routing.prompt import BlockKey

Holders = dict[BlockKey, int]
"""No key is there without a holder."""


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
