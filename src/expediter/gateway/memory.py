"""Freed memory is kept for the next body.

By default glibc gives a freed block at the end of its heap back to the system as soon as 128 KiB
lie there. With bodies of that size it does so for every request, and the next one pays for fresh
pages, a fault for each 4 KiB: a third of the time that a body of 100 KB takes here.
"""

import ctypes
import sys

KEPT_BYTES = 32 * 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MAX_HEAP_BLOCK = 4 * 1024 * 1024  # larger ones come from the system and go back to it


def keep_freed_memory() -> None:
    """For the whole process; does nothing where the C library is not glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAX_HEAP_BLOCK)
