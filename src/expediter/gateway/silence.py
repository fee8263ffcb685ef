"""How long nothing has happened on a connection, as sweeps see it.

To ask for the time at every piece would cost more than a time-out is worth. So whatever happens
only says that it does, and silence begins with the first sweep after the last that happened.
"""

from typing import Protocol


class Watched(Protocol):
    """Sets `is_quiet` to False when something happens; `quiet_since` is the sweeps'."""

    is_quiet: bool
    quiet_since: float


def silence(watched: Watched, now: float) -> float:
    """Seconds; to be asked once in each sweep."""
    if not watched.is_quiet:
        watched.is_quiet, watched.quiet_since = True, now
    return now - watched.quiet_since
