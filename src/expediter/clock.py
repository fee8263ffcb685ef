"""Time is a parameter.

Everything below the gateway asks a `Clock` for the time, so the same code runs on the
wall clock and on a simulator's clock that jumps.
"""

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds on a monotonic scale; only differences mean anything."""
