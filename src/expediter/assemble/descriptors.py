"""As many open connections as the system allows.

Most systems let a process have 1,024 descriptors unless it asks for more. A gateway needs two for
each request, one to either side.
"""

import contextlib
import resource

MAX_DESCRIPTORS = 2**20


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit to the hard one; where that is refused, it stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
