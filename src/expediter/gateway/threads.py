"""How the kernel is to share a core among this process's threads.

The event loop runs for microseconds and must run at once when something comes in; tokenizing runs
for milliseconds, and nobody minds whether it does so now or then. Niceness alone does not say that:
since Linux 6.6 a thread that runs keeps the core for a slice, milliseconds long, whoever else wakes
up. Since 6.12 a thread can ask for shorter slices than others', and then it does not wait for
theirs. Where that is not known, nothing changes.
"""

import ctypes
import os
import platform
import struct
import sys
import threading

PROMPT_SLICE_NS = 100_000  # the shortest there is
NICENESS = 10  # of work in the background

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}  # sched_setattr(2), by machine
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, slice, -, -


def be_prompt() -> None:
    """This thread is short of time and takes little: from now on it runs when it wakes up."""
    _ask_for(slice_ns=PROMPT_SLICE_NS)


def make_way() -> None:
    """This thread has time: it lets others run first, and does not interrupt them."""
    if sys.platform == "linux":  # where a thread has a niceness of its own
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)
        _ask_for(slice_ns=0)  # else it has that of the thread which started it


def _ask_for(*, slice_ns: int) -> None:
    """Slices of this length, 0 for the usual; leaves threads with a policy of their own alone."""
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    size = _ATTRIBUTES.size
    asked = _ATTRIBUTES.pack(size, os.SCHED_OTHER, 0, niceness, 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, asked, 0)  # an older kernel ignores or refuses it
