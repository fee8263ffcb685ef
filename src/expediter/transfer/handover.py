"""The story of one prompt's KV, as each side sees it.

    stage      at the source                          at the target
    reserved   somebody waits; nothing is held        slots are held, the source is asked
    computing  its blocks are under a lease           blocks are named; copied as they are computed
    offered    all computed, waits to be read         -
    pulling    -                                      all computed; the rest is being copied
    taken      -                                      all copied; the source is told until it hears
    released   the target wants nothing more          nothing is held; the source knows
    expired    ended by time or a failure             ended so: what is missing is computed here

    from       on                                     to
    -          announce, or Attach at the source      reserved
    -          reserve at the target                  reserved
    reserved   begin at the source, Offer at target   computing
    computing  done at the source                     offered
    computing  Done at the target                     pulling
    pulling    the last pull ends, lease still good   taken
    taken      Gone, or the lease's time is over      released
    any        Release at the source, cancel          released
    any        lease or patience over, Gone, fail     expired

Both ends are final. A message for a transfer that has ended changes nothing; the source answers it
with Gone, for whoever did not hear of the end.
"""

from collections.abc import Hashable
from enum import StrEnum


class Stage(StrEnum):
    """Where a hand-over is; see the table above."""

    RESERVED = "reserved"
    COMPUTING = "computing"
    OFFERED = "offered"
    PULLING = "pulling"
    TAKEN = "taken"
    RELEASED = "released"
    EXPIRED = "expired"


PeerId = Hashable
"""A connection to the other side, as whoever sends the messages knows it."""
